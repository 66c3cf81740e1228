"""Distillation: one network taught to predict what the whole ensemble predicts.

The student minimises, over inputs that need no labels, the mean Kullback-Leibler divergence from
the ensemble's predictive distribution to its own:

* classes: sum_k p_k ln(p_k / q_k), with p the ensemble's mean probabilities;
* regression: of Gaussians N(m, v) with the ensemble's mean and total variance,
  [ln(w / v) + (v + (m - mu)^2) / w - 1] / 2. A student with twice the outputs gives mu and ln w;
  one with as many outputs as targets gives mu alone, and w = v.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from natural_langevin.likelihoods import Bernoulli, Likelihood
from natural_langevin.posterior.prediction import Prediction, entropy

log = logging.getLogger("natural_langevin")

Divergence = Callable[[Tensor, Tensor], Tensor]  # (student's outputs, rows) -> mean KL


def divergence(prediction: Prediction, likelihood: Likelihood) -> Divergence:
    """Mean KL of the rows given by their indices, from the student's outputs for them."""
    p = prediction.mean
    if isinstance(likelihood, Bernoulli):
        own = entropy(p, likelihood)
        loss = nn.functional.binary_cross_entropy_with_logits
        return lambda outputs, rows: (
            loss(outputs.reshape(p[rows].shape), p[rows], reduction="none") - own[rows]
        ).mean()
    if likelihood.discrete:
        negative = -entropy(p, likelihood)
        return lambda outputs, rows: (
            negative[rows] - (p[rows] * outputs.log_softmax(-1)).sum(-1)
        ).mean()
    variance = prediction.total if prediction.total is not None else torch.ones_like(p)

    def gaussian(outputs: Tensor, rows: Tensor) -> Tensor:
        m, v = p[rows], variance[rows]
        if outputs.numel() == m.numel():
            return ((outputs.reshape(m.shape) - m).square() / v).mean() / 2
        if outputs.numel() != 2 * m.numel():
            raise ValueError(
                f"a student of this regression gives {m[0].numel()} outputs (the mean) or twice "
                f"as many (mean, then log variance), got {outputs[0].numel()}"
            )
        mu, log_w = (part.reshape(m.shape) for part in outputs.chunk(2, dim=-1))
        return 0.5 * (log_w - v.log() + (v + (m - mu).square()) / log_w.exp() - 1).mean()

    return gaussian


def train(
    student: nn.Module,
    x: Tensor,
    loss: Divergence,
    *,
    steps: int,
    batch_size: int,
    learning_rate: float,
    seed: int,
) -> nn.Module:
    """Adam with a rate that falls to zero along half a cosine; torch's own generators untouched."""
    for name, count in (("steps", steps), ("batch_size", batch_size)):
        if count < 1:
            raise ValueError(f"{name} must be at least 1, got {count!r}")
    if not (math.isfinite(learning_rate) and learning_rate > 0):
        raise ValueError(f"learning_rate must be positive and finite, got {learning_rate!r}")
    if len(x) == 0:
        raise ValueError("distilling needs inputs, got none")
    student.requires_grad_(True)
    optimizer = torch.optim.Adam(student.parameters(), lr=learning_rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    generator = torch.Generator().manual_seed(seed)
    order = torch.empty(0, dtype=torch.int64)
    value = torch.zeros(())
    with torch.random.fork_rng(), torch.enable_grad():  # a student with dropout draws from torch's
        torch.manual_seed(seed)
        for _ in range(steps):
            if len(order) == 0:
                order = torch.randperm(len(x), generator=generator)
            rows, order = order[:batch_size].to(x.device), order[batch_size:]
            optimizer.zero_grad()
            value = loss(student(x[rows]), rows)
            value.backward()
            optimizer.step()
            schedule.step()
    log.info("distilled: the last batch's mean KL divergence is %.4f nats", float(value.detach()))
    return student.requires_grad_(False).eval()
