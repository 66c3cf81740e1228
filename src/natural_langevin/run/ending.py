"""Whether a run of open length was long enough: its loss no longer falls, and its chains agree."""

from __future__ import annotations

import torch
from torch import Tensor

from natural_langevin.data.streams import Stream
from natural_langevin.likelihoods.predictive import probabilities
from natural_langevin.posterior.plan import EndRule
from natural_langevin.posterior.posterior import Posterior


def too_short(so_far: Posterior, stream: Stream, rule: EndRule, *, part: bool) -> str:
    """Why a run is to be followed by another, or nothing: a first ``part`` also is where its
    chains disagree."""
    if fall := falls_by(so_far.trace, rule):
        return f"the loss still fell by {fall:.2g} nats per sample in the last third"
    if part and (nats := _disagreement(so_far, *stream.example())) > rule.disagreement:
        return f"chains disagree, by {nats:.2g} nats"
    return ""


def _disagreement(so_far: Posterior, x: Tensor, y: Tensor) -> float:
    """That of all chains: about every class, or the targets that are."""
    if so_far.likelihood.link is not None:
        laws = [so_far.predict_dist(x, chains=[c], sharpness=1.0) for c in so_far.healthy]
        each = torch.stack([probabilities(law) for law in laws])
        return disagreement(each, each.mean(0))
    log_density = so_far.log_likelihood(x, y).double()
    return disagreement(torch.exp(log_density - log_density.amax((0, 1))).mean(1))


def falls_by(trace: Tensor, rule: EndRule) -> float:
    """By how many nats per sample a run's loss is lower in its last third than in the one before,
    in the mean of its chains; 0 where that is not above the rule's ``falling`` and so many
    ``errors`` of it. ``trace`` (look, 1 + chain): losses of minibatches at every look, the step
    first."""
    looks = len(trace) // 3
    if looks < rule.fewest_looks or not bool(torch.isfinite(trace).all()):
        return 0.0
    middle, last = trace[-2 * looks :, 1:].double().mean(1).split(looks)
    error = ((middle.var() + last.var()) / looks).sqrt()
    fall = middle.mean() - last.mean()
    return float(fall) if fall > max(rule.falling, rule.errors * float(error)) else 0.0


def disagreement(density: Tensor, weights: Tensor | None = None) -> float:
    """What it costs that chains say different things, in nats per sample: with p_c the densities
    (chain, row, ...) of chain c, and p that of all C chains,

        (1 / 2C) mean over rows of var_c(p_c) / p^2,

    by which E[-ln p] is above that of as many runs pooled. 0 of one chain. ``weights`` (row, ...):
    of what may be observed, in place of what was. Classes are weighed by p: rows that networks have
    learned have a class of which they are all sure, where new rows would have another."""
    if len(density) < 2:
        return 0.0
    density = density.double()
    relative = density.var(0) / density.mean(0).square().clamp_min(1e-300)
    cost = relative if weights is None else (relative * weights).sum(-1)
    return float(cost.mean()) / (2 * len(density))
