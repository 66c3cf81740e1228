"""The recipe behind the estimators, the command line and the library: one table, one answer.

1. Where the target may be seen in several ways (noise of one size or depending on the inputs; the
   target or its logarithm) or the inputs (as they are, drawn in, decorrelated), each runs on the
   folds of a cross-validation, which are chains of one run; the larger density of held-out rows
   decides.
2. Every candidate (prior and temperature, with a step size at which no chain diverges) runs on the
   folds; what is held out gives the candidates their weights, and one number that makes the mixture
   sharper or wider.
3. Those that count run on all the data. Their weighted mixture predicts.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from natural_langevin._internal import threads
from natural_langevin._internal.atomic import write
from natural_langevin._internal.checked_json import read_json, with_checksum, without_checksum
from natural_langevin.data.errors import DataError
from natural_langevin.metrics.conformal import threshold
from natural_langevin.posterior.posterior import Posterior
from natural_langevin.recipe.settings import Search
from natural_langevin.run.loop import DivergenceError
from natural_langevin.tabular import crossvalidation
from natural_langevin.tabular.candidates import Candidate, candidates, single
from natural_langevin.tabular.crossvalidation import Problem, networks
from natural_langevin.tabular.inputs import FAR, Inputs, fit_inputs, plain_inputs
from natural_langevin.tabular.outcome import Outcome, outcomes
from natural_langevin.tabular.predictive import Networks, Predictive
from natural_langevin.tabular.settings import AUTO, DEEP_FROM, MANY, UNITS, Settings
from natural_langevin.tabular.views import Trials, View
from natural_langevin.tabular.weighing import Weighed, at_scales, weigh

log = logging.getLogger("natural_langevin")

#: Rows predicted at a time.
CHUNK = 1000
#: Weights that are no whole numbers become about this many repetitions of an average row, or as
#: many as make no more rows than that.
REPETITIONS, MOST_REPEATED = 10, 2_000_000


@dataclass(frozen=True, eq=False)
class Learned:
    """Posteriors with weights, what their networks are given, and how to read their outputs.

    ``sound``: of every posterior the networks that count (``Problem.sound``), nearly always all.
    ``factors``: of every posterior what its noise is multiplied by, [factor, share] each, and
    ``scale`` their geometric mean or, of classes, that of ``scales``, [scale, share] each, which
    made the mixture surer (``weighing``).
    ``choice``: every candidate with its held-out NLL and weight; ``reason``: the same in words."""

    outcome: Outcome
    settings: Settings
    inputs: Inputs
    posteriors: list[Posterior]
    sound: list[Tensor]
    weights: Tensor
    factors: list[list[list[float]]]
    scale: float
    strangeness: Tensor
    choice: list[dict[str, Any]]
    reason: str
    scales: list[list[float]]

    def conformal(self, level: float) -> float:
        """How strange (see ``Weighed``) the rows may be so that ``level`` of new ones are not
        stranger: the conformal threshold of the rows that folds held out. Their networks saw fewer
        rows than those that predict, so that the coverage is kept in practice, not by a theorem."""
        if not len(self.strangeness):
            raise ValueError("conformal prediction needs held-out rows, and folds was 0")
        return threshold(self.strangeness, level)

    @property
    def best(self) -> Posterior:
        """The posterior of the largest weight."""
        return self.posteriors[int(self.weights.argmax())]

    def probabilities(self, x: Tensor) -> Tensor:
        """(n, class), of classes or ordered classes."""
        return self.uncertainty(x)[0]

    def uncertainty(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Class probabilities (n, class), and the epistemic part (n,) of their entropy in nats. Its
        share is that of the networks as they are, (H(mean) - mean H) / H(mean): scaling changes how
        large the entropy is, and says nothing about where it comes from."""
        means, share = [], []
        for part in x.split(CHUNK):
            p, entropy = torch.zeros(()), torch.zeros(())
            for weight, said in zip(self.weights, self._networks(part), strict=True):
                law: Any = said.law(self.outcome)
                each = law.probs
                p = p + weight * each.mean(0)
                entropy = entropy + weight * torch.special.entr(each).sum(-1).mean(0)
            means.append(p)
            whole = torch.special.entr(p).sum(-1).clamp_min(torch.finfo(p.dtype).tiny)
            share.append((1 - entropy / whole).clamp(0, 1))
        scaled = at_scales(torch.cat(means), self.scales)
        scaled = scaled / scaled.sum(1, keepdim=True)
        return scaled, torch.special.entr(scaled).sum(-1) * torch.cat(share)

    def predictive(self, x: Tensor, *, flat: bool = True) -> Predictive:
        """The distribution of the targets of these rows, of numbers or counts."""
        if self.outcome.classes:
            raise TypeError("classes have probabilities: use probabilities(x)")
        outputs, variances, shares, scales = [], [], [], []
        every = zip(self.weights.tolist(), self.factors, self._networks(x), strict=True)
        for weight, factors, said in every:
            for factor, share in factors:
                count = len(said.outputs)
                outputs.append(said.outputs)
                variances += [] if said.variance is None else [said.variance]
                shares.append(torch.full((count,), weight * share / count, dtype=torch.float64))
                scales.append(torch.full((count, 1, 1), factor, dtype=torch.float64))
        joined = Networks(torch.cat(outputs), torch.cat(variances) if variances else None)
        law = joined.law(self.outcome, torch.cat(scales))
        shares_of_all = torch.cat(shares)
        return Predictive(self.outcome, law, shares_of_all / shares_of_all.sum(), flat=flat)

    def log_prob(self, x: Tensor, y: Tensor) -> Tensor:
        """ln p of the targets (as ``learn`` takes them) of these rows: (n,)."""
        found = []
        for part, own in zip(x.split(CHUNK), y.split(CHUNK), strict=True):
            if self.outcome.classes:
                p = self.probabilities(part)[torch.arange(len(own)), own]
                found.append(p.clamp_min(torch.finfo(p.dtype).tiny).log())
            else:
                found.append(torch.as_tensor(self.predictive(part, flat=False).log_prob(own)))
        return torch.cat(found)

    def network_means(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """What every network expects: its weight (network,), and class probabilities or means of
        targets (network, n, k). Without the scale of held-out rows."""
        if not self.outcome.classes:
            found = self.predictive(x, flat=False)
            return torch.as_tensor(found.weights), torch.as_tensor(found.network_means)
        said = [part.law(self.outcome).probs for part in self._networks(x)]  # type: ignore[attr-defined]
        weights = [
            torch.full((len(p),), float(w) / len(p), dtype=torch.float64)
            for w, p in zip(self.weights, said, strict=True)
        ]
        return torch.cat(weights), torch.cat(said).double()

    def _networks(self, x: Tensor) -> list[Networks]:
        network = self.outcome.network(self.inputs.width, self.settings)
        x = self.inputs(x)
        return [
            networks(posterior, network, x).of(sound)
            for posterior, sound in zip(self.posteriors, self.sound, strict=True)
        ]

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Posteriors in folders 0, 1, ..., and learned.json, which is written last."""
        folder = Path(folder)
        for k, posterior in enumerate(self.posteriors):
            posterior.save(folder / str(k))
        value = {
            "outcome": self.outcome.to_json(),
            "settings": self.settings.to_json(),
            "inputs": self.inputs.to_json(),
            "sound": [numbers.tolist() for numbers in self.sound],
            "weights": self.weights.tolist(),
            "factors": self.factors,
            "scale": self.scale,
            "strangeness": [round(value, 9) for value in self.strangeness.tolist()],
            "choice": self.choice,
            "reason": self.reason,
            "scales": self.scales,
        }
        write(folder / "learned.json", json.dumps(with_checksum(value), indent=1).encode())

    @staticmethod
    def load(folder: str | os.PathLike[str], device: str = "cpu") -> Learned:
        """What ``save`` wrote."""
        folder = Path(folder)
        value = without_checksum(read_json(folder / "learned.json"))
        outcome = Outcome.from_json(value["outcome"])
        settings, inputs = (
            Settings.from_json(value["settings"]), Inputs.from_json(value["inputs"])
        )  # fmt: skip
        weights = torch.tensor(value["weights"], dtype=torch.float64)
        network = outcome.network(inputs.width, settings).to(device)
        before = [[[float(value["scale"]), 1.0]]] * len(weights)  # runs of one factor for all
        posteriors = [Posterior.load(folder / str(k), network) for k in range(len(weights))]
        return Learned(
            outcome, settings, inputs, posteriors, list(map(torch.tensor, value["sound"])),
            weights, value.get("factors", before), float(value["scale"]),
            torch.tensor(value["strangeness"], dtype=torch.float64), value["choice"],
            str(value["reason"]), value.get("scales", [[float(value["scale"]), 1.0]]),
        )  # fmt: skip


@threads.one_where(lambda x: x.numel() <= 20_000)  # few numbers: many small operations
def learn(
    x: Tensor,
    y: Tensor,
    task: str,
    settings: Settings | None = None,
    *,
    classes: int = 0,
    sample_weight: Any = None,
    device: str | None = None,
    progress: bool = False,
    checkpoint: str | os.PathLike[str] | None = None,
) -> Learned:
    """Inputs (n, width) on a scale of about one, and targets: of a "classification" or "ordinal"
    target labels (n,) below ``classes``, of a "regression" or "count" numbers (n, target) in their
    own units.

    ``sample_weight`` (n,): a row of weight 2 counts as two rows. ``checkpoint``: a folder; a call
    with the same arguments goes on from what it holds.

    >>> x = torch.linspace(-1, 1, 40).double()[:, None]
    >>> learned = learn(x, 3 * x + 100, "regression", Settings(steps=40, folds=2))
    >>> learned.predictive(x[:2]).mean.shape
    (2,)
    """
    asked = settings or Settings()
    settings = asked.of_rows(len(x))
    weights = None if sample_weight is None else torch.as_tensor(sample_weight).double()
    offered = outcomes(task, y, settings, classes=classes, weights=weights)
    count, num_data = _repetitions(weights)
    folds = settings.folds_of(len(x))
    rows = _fold_rows(y, folds, settings, offered[0])
    seen = x if count is None else x.repeat_interleave(count, dim=0)

    def view(outcome: Outcome, inputs: Inputs, settings: Settings = settings) -> View:
        y_sampled = outcome.encode(y)
        y_sampled = y_sampled if outcome.classes else y_sampled.to(settings.dtype)
        problem = Problem(
            outcome, settings, inputs(x), y_sampled, count, num_data, device, progress, checkpoint,
            str(inputs),
        )  # fmt: skip
        return View(problem, inputs)

    plain = plain_inputs(x.shape[1], settings.dtype, FAR if offered[0].classes else None)
    if not folds:
        one = single(settings, few=len(x) < Search.fewest_data)
        learned = _on_all_data(view(offered[0], plain), [one], Weighed([None], [1.0], 1.0))
        return replace(learned, reason=f"{one} (no cross-validation)")
    every = candidates(settings, classes=bool(offered[0].classes), rows=len(x))
    trials = Trials(every[0], rows, y)
    if offered[0].classes:
        views = [view(offered[0], plain)]
        if asked.hidden == AUTO and DEEP_FROM <= len(x) < MANY:
            views.append(view(offered[0], plain, replace(settings, hidden=(UNITS,))))
        chosen, every, weighed, reason = _best_network(views, rows, y)
    else:
        _try_views(trials, view, offered, seen, plain, settings)
        chosen, held_out, every = trials.rest(every, view(offered[0], plain))
        weighed, reason = weigh(held_out, chosen.outcome, y, len(every)), trials.reason
    outcome = chosen.outcome
    learned = _on_all_data(chosen, every, weighed)
    reason += _reason(learned, every, weighed, len(rows))
    if outcome.bounded:
        above = "" if outcome.upper is None else f" or above {outcome.upper:g}"
        reason += f"; no prediction is below 0{above}, since no target is"
    return replace(learned, reason=reason)


def _try_views(
    trials: Trials,
    view: Callable[..., View],
    offered: Sequence[Outcome],
    seen: Tensor,
    plain: Inputs,
    settings: Settings,
) -> None:
    """Of numbers: one after the other, kinds of noise, far inputs drawn in, decorrelated inputs and
    a smooth activation are tried on the folds; each is kept where it is better than the best so
    far."""
    for outcome in offered:
        trials.run(view(outcome, plain))
    drawn_in = fit_inputs(seen, settings.dtype)
    if str(drawn_in):
        trials.run(view(trials.best.outcome, drawn_in))
    decorrelated = trials.best.inputs.decorrelated(seen)
    if decorrelated is not None:
        trials.run(view(trials.best.outcome, decorrelated))
    if settings.activation == AUTO:
        smooth = replace(settings, activation="tanh")
        trials.run(view(trials.best.outcome, trials.best.inputs, smooth))


def _best_network(
    views: Sequence[View], rows: Sequence[Tensor], y: Tensor
) -> tuple[View, list[Candidate], Weighed, str]:
    """Of classes: all candidates on the folds with every view's network. The mixture of the larger
    held-out density decides, since a prior that suits two hidden layers may be too narrow for one.
    Returns the view, its candidates and their weights, and in words why."""
    found: list[tuple[float, View, list[Candidate], Weighed]] = []
    for view in views:
        try:
            held_out, tried = view.problem.held_out(candidates(view.problem.settings), rows)
        except DivergenceError:
            if view is views[-1] and not found:
                raise
            continue
        weighed = weigh(held_out, view.outcome, y, len(tried))
        nll = -float((1 - weighed.strangeness).clamp_min(1e-300).log().mean())
        found.append((nll, view, tried, weighed))
    found.sort(key=lambda one: one[0])
    words = [f"{len(one[1].problem.settings.layers)}: {one[0]:.4g}" for one in found]
    _, view, tried, weighed = found[0]
    reason = f"hidden layers (held-out NLL) {', '.join(words)}; " if len(found) > 1 else ""
    return view, tried, weighed, reason


def _fold_rows(y: Tensor, folds: int, settings: Settings, outcome: Outcome) -> list[Tensor]:
    if not folds:
        return []
    labels = y.numpy() if outcome.classes else None
    return crossvalidation.split(len(y), folds, settings.seed, labels, settings.held_out)


def _on_all_data(view: View, offered: Sequence[Candidate], weighed: Weighed) -> Learned:
    """A run for every candidate that counts, of chains in proportion to its weight (two at least);
    one that diverges counts no more."""
    runs: dict[int, Posterior] = {}
    problem, chains = view.problem, view.problem.settings.chains
    for k, weight in enumerate(weighed.weight):
        if not weight:
            continue
        try:
            runs[k] = problem.posterior(offered[k], max(min(2, chains), round(weight * chains)))
        except DivergenceError:
            if not any(weighed.weight[k + 1 :]) and not runs:
                raise
            log.warning("%s diverged on all the data, and is left out", offered[k])
    weights = torch.tensor([weighed.weight[k] for k in runs], dtype=torch.float64)
    weights = weights / weights.sum()
    shares = dict(zip(runs, weights.tolist(), strict=True))
    choice = [
        candidate.as_dict() | {"nll": nll, "weight": shares.get(k, 0.0)}
        for k, (candidate, nll) in enumerate(zip(offered, weighed.nll, strict=True))
    ]
    sound = [problem.sound(posterior) for posterior in runs.values()]
    for posterior, numbers in zip(runs.values(), sound, strict=True):
        if left_out := len(posterior.healthy) * posterior.draws - len(numbers):
            log.info("%d networks ran away from the training rows, and are left out", left_out)
    return Learned(
        problem.outcome, problem.settings, view.inputs, list(runs.values()), sound, weights,
        [weighed.factors.get(k, [[1.0, 1.0]]) for k in runs], weighed.scale, weighed.strangeness,
        choice, "", weighed.scales,
    )  # fmt: skip


def _reason(learned: Learned, offered: Sequence[Candidate], weighed: Weighed, folds: int) -> str:
    shares = [one["weight"] for one in learned.choice]
    parts = [
        f"{shares[k]:.0%} {offered[k]} (held-out NLL {weighed.nll[k]:.4g})"
        for k in np.argsort(shares)[::-1]
        if shares[k]
    ]
    surer = "surer" if weighed.scale < 1 else "no surer"
    return (
        f"{'; '.join(parts)}; stacked by the density of held-out rows, {folds} folds, "
        f"{len(offered)} candidates; made {surer} by a scale of {weighed.scale:.3g}"
    )


def _repetitions(weights: Tensor | None) -> tuple[Tensor | None, int | None]:
    """How often every row is repeated, and how many data that stands for.

    Weights that sum to one datum are relative ones, as boosting gives them, and made to have a mean
    of 1. Whole weights are repeated exactly. Others by systematic rounding, about REPETITIONS times
    on average: the error of a row's weight is at most one repetition, that of any sum too."""
    if weights is None:
        return None, None
    if not bool(weights.isfinite().all()) or bool((weights < 0).any()) or not float(weights.sum()):
        raise DataError("sample_weight must be finite, not negative and not all zero")
    total = float(weights.sum())
    if total < 2 < len(weights):  # normalised weights: nobody means one datum
        log.info("sample_weight sums to %g: taken relative to a mean of 1", total)
        weights, total = weights * (len(weights) / total), float(len(weights))
    if bool((weights == weights.round()).all()) and total <= MOST_REPEATED:
        return weights.long(), round(total)
    repetitions = min(REPETITIONS, max(1, MOST_REPEATED // len(weights)))
    target = (weights / total * repetitions * len(weights)).cumsum(0).round().long()
    return torch.diff(target, prepend=target.new_zeros(1)), max(1, round(total))


def settings_from(options: Mapping[str, Any]) -> Settings:
    """What was given and is not None, and the defaults for the rest."""
    return Settings(**{name: value for name, value in options.items() if value is not None})
