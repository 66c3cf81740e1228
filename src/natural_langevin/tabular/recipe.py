"""From a table to a posterior, for the estimators and the command line.

1. A table may be seen in several ways (``views``): noise of one size or depending on the inputs,
   the target or its logarithm, inputs as they are or decorrelated, a network of one or two hidden
   layers, ReLU or tanh, or a linear model. Each is a problem that ``Langevin`` plans and runs by
   its own recipe, on the folds of a cross-validation, which are chains of one run.
2. What is held out gives the views their weights, and says how much sharper or wider the mixture
   should be (``weighing``).
3. The views that count run on all rows, from where their chains on folds ended. Their weighted
   mixture predicts.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from natural_langevin._internal import threads
from natural_langevin.data.errors import DataError
from natural_langevin.run.loop import DivergenceError
from natural_langevin.tabular import crossvalidation
from natural_langevin.tabular.crossvalidation import Clock, TableFit, Trial
from natural_langevin.tabular.inputs import FAR, FURTHER, fit_inputs, plain_inputs
from natural_langevin.tabular.learned import CHUNK, Drift, Learned, Member
from natural_langevin.tabular.outcome import Outcome, outcomes
from natural_langevin.tabular.settings import AUTO, DEEP_FROM, MANY, UNITS, Settings
from natural_langevin.tabular.views import View
from natural_langevin.tabular.weighing import HeldOut, Weighed, drifts, mean_bound, rows_nll, weigh

__all__ = ["CHUNK", "Learned", "learn", "refit", "settings_from"]

log = logging.getLogger("natural_langevin")

#: Weights that are no whole numbers become about this many repetitions of an average row, or as
#: many as make no more rows than that.
REPETITIONS, MOST_REPEATED = 10, 2_000_000
#: Views in the mixture at most.
MOST_MEMBERS = 3
#: Where a call has so many seconds: the part of them after which runs are over.
RUNNING = 0.96


@threads.one_where(lambda x: x.numel() <= 20_000)  # few numbers: many small operations
def learn(
    x: Tensor,
    y: Tensor,
    task: str,
    settings: Settings | None = None,
    *,
    classes: int = 0,
    time: int | None = None,
    sample_weight: Any = None,
    device: str | None = None,
    progress: bool = False,
    checkpoint: str | os.PathLike[str] | None = None,
) -> Learned:
    """Inputs (n, width) on a scale of about one, and targets: of a "classification" or "ordinal"
    target labels (n,) below ``classes``, of a "regression" or "count" numbers (n, target) in their
    own units.

    ``time``: the place of a date among the inputs; predictions of numbers after the last of them
    are the wider the later, as chains that saw the past alone find rows after it. ``sample_weight``
    (n,): a row of weight 2 counts as two rows. ``checkpoint``: a folder; a call with the same
    arguments continues from it.

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
    fit = TableFit(
        x, y, settings, _fold_rows(y, settings, offered[0]), count, num_data, device, progress,
        checkpoint, Clock(settings.seconds), _pasts(x, time, offered[0]),
    )  # fmt: skip
    seen = x if count is None else x.repeat_interleave(count, dim=0)
    first = plain_inputs(x.shape[1], settings.dtype, FAR)
    if not offered[0].classes:
        first = fit_inputs(seen, settings.dtype, FURTHER)
    views = [View(outcome, first, settings) for outcome in offered]
    if not fit.folds:
        return _without_folds(fit, views[0])
    trials = Trials(fit)
    # The prior's scale is chosen by the view whose chains bear the least: noise as an output.
    for view in reversed(views):
        trials.run(view)
    for view in _more(trials, asked, seen):
        trials.run(view)
    best, weighed = trials.weighed()
    learned = _on_all_rows(fit, best, weighed)
    if time is not None and fit.past:
        learned = replace(learned, drift=_drift(fit, time, best, weighed))
    return replace(learned, choice=trials.choice(learned), reason=trials.reason(learned))


def _more(trials: Trials, asked: Settings, seen: Tensor) -> Iterator[View]:
    """Further views to try, variations of the best one so far."""
    if not trials.best.view.outcome.classes:
        decorrelated = trials.best.view.inputs.decorrelated(seen)
        if decorrelated is not None:
            yield replace(trials.best.view, inputs=decorrelated)
        if asked.activation == AUTO:
            yield trials.best.view.with_activation("tanh")
    elif asked.hidden == AUTO and DEEP_FROM <= len(trials.fit.x) < MANY:
        yield trials.best.view.with_layers(UNITS)
    if asked.hidden == AUTO:
        yield trials.best.view.with_layers()


class Trials:
    """Runs views on the folds, and keeps what they gave. The first decides about the prior's scale
    for all."""

    def __init__(self, fit: TableFit) -> None:
        self.fit, self.y = fit, fit.y[torch.cat(fit.folds)]
        self._done: list[Trial] = []
        self._nll: list[Tensor] = []
        self._took = 0.0

    def run(self, view: View) -> None:
        """Tries one more view on the folds, where there is time; one that diverges is left out."""
        clock, began = self.fit.clock, self.fit.clock.spent
        left = clock.until(crossvalidation.COMPARING)
        if self._done and left is not None and left < self._took:
            return
        try:
            scale = self._done[0].plan.prior_scale if self._done else self.fit.first_scale
            trial = self.fit.on_folds(view, self.fit.plan(view, scale))
        except DivergenceError:
            log.info("%s: chains diverged, so it is left out", view)
            return
        self._done.append(trial)
        self._nll.append(rows_nll(_held_out(trial), self.y))
        self._took = max(self._took, clock.spent - began)

    @property
    def best(self) -> Trial:
        """The view of the largest held-out density so far."""
        if not self._done:
            raise DivergenceError("no view ran to its end: give a smaller step_size")
        return self._done[self._order()[0]]

    def _order(self) -> list[int]:
        return sorted(range(len(self._done)), key=lambda k: float(self._nll[k].mean()))

    def weighed(self) -> tuple[list[Trial], Weighed]:
        """The views that predict best together, at most MOST_MEMBERS, and their weights. Beside the
        best are those whose predictions can be mixed with its own."""
        mixed = [self._done[k] for k in self._order()]
        mixed = [trial for trial in mixed if _mixes(trial.view.outcome, mixed[0].view.outcome)]
        found = weigh([_held_out(trial) for trial in mixed], self.y)
        order = sorted(range(len(mixed)), key=lambda k: -found.weight[k])
        best = [mixed[k] for k in order[:MOST_MEMBERS] if found.weight[k]]
        views = [_held_out(trial) for trial in best]
        found = weigh(views, self.y)
        largest = mean_bound(views, found, self.y)
        if largest != views[0].outcome.largest:
            bounded = [replace(trial.view.outcome, largest=largest) for trial in best]
            best = [
                replace(trial, view=replace(trial.view, outcome=outcome))
                for trial, outcome in zip(best, bounded, strict=True)
            ]
        return best, found

    def choice(self, learned: Learned) -> list[dict[str, Any]]:
        """Every view that was tried."""
        shares = {str(member.view): member.weight for member in learned.members}
        return [
            {
                "view": str(trial.view),
                "nll": float(nll.mean()),
                "weight": shares.get(str(trial.view), 0.0),
                "prior_scale": self._done[0].plan.prior_scale,
                "step_size": trial.plan.step_size,
            }
            for trial, nll in zip(self._done, self._nll, strict=True)
        ]

    def reason(self, learned: Learned) -> str:
        """Why the mixture is what it is, in words."""
        tried = sorted(self.choice(learned), key=lambda one: (-one["weight"], one["nll"]))
        parts = [
            f"{one['view']} ({one['weight']:.0%}, held-out NLL {one['nll']:.4g})" for one in tried
        ]
        outcome = learned.outcome
        bounds = ""
        if outcome.bounded:
            above = "" if outcome.upper is None else f" or above {outcome.upper:g}"
            bounds = f"; no prediction is below 0{above}, since no target is"
        return f"{'; '.join(parts)}; stacked by {len(self.y):,} held-out rows{bounds}"


def _mixes(one: Outcome, other: Outcome) -> bool:
    """Whether predictions of two outcomes are on one scale, with laws of one kind."""
    alike = one.log == other.log and one.two_parts == other.two_parts
    return one == other or (one.real and other.real and alike)


def _held_out(trial: Trial) -> HeldOut:
    return HeldOut(trial.view.outcome, trial.folds)


def _fold_rows(y: Tensor, settings: Settings, outcome: Outcome) -> list[Tensor]:
    folds = settings.folds_of(len(y))
    if not folds:
        return []
    labels = y.numpy() if outcome.classes else None
    return crossvalidation.split(len(y), folds, settings.seed, labels, settings.held_out)


def _pasts(x: Tensor, time: int | None, outcome: Outcome) -> list[crossvalidation.Past]:
    if time is None or outcome.classes:
        return []
    return crossvalidation.pasts(x[:, time].double())


def _drift(fit: TableFit, time: int, trials: Sequence[Trial], weighed: Weighed) -> Drift:
    """What the views of the mixture found of the future of the past."""
    times = fit.x[:, time].double()
    unit = float(times.max() - times.min())
    views = [HeldOut(trial.view.outcome, trial.later) for trial in trials]
    after = torch.cat([past.after for past in fit.past]) / unit
    parts = drifts(views, weighed, fit.y[torch.cat([past.asked for past in fit.past])], after)
    return Drift(time, float(times.max()), unit, parts)


def _without_folds(fit: TableFit, view: View) -> Learned:
    trial = Trial(view, fit.plan(view, fit.first_scale), [], ({}, {}))
    learned = _on_all_rows(fit, [trial], Weighed([], [1.0], [[[1.0, 1.0]]]))
    return replace(learned, reason=f"{view} (no cross-validation)")


def refit(
    learned: Learned,
    x: Tensor,
    y: Tensor,
    *,
    device: str | None = None,
    progress: bool = False,
    checkpoint: str | os.PathLike[str] | None = None,
) -> Learned:
    """The same mixture fitted to more rows: every posterior continues from its end, by its plan.
    Weights and scales are kept."""
    fit = TableFit(x, y, learned.settings, [], None, None, device, progress, checkpoint)
    members = []
    for member in learned.members:
        before = member.posterior
        assert before.plan is not None, "a posterior that no plan made"
        end = tuple(
            {k: v[before.healthy] for k, v in tree.items()}
            for tree in crossvalidation.ended(before)
        )
        trial = Trial(member.view, before.plan, [], (end[0], end[1]))
        posterior = fit.on_all_rows(trial, len(before.healthy))
        sound = fit.sound(member.view, posterior)
        members.append(replace(member, posterior=posterior, sound=sound))
    drift = learned.drift
    if drift is not None:
        drift = replace(drift, last=max(drift.last, float(x[:, drift.place].max())))
    return replace(learned, members=members, drift=drift)


def _on_all_rows(fit: TableFit, trials: Sequence[Trial], weighed: Weighed) -> Learned:
    """A run for every view that counts, of chains in proportion to its weight (two at least); one
    that diverges counts no more."""
    members: list[Member] = []
    chains, left = fit.settings.chains, [k for k, w in enumerate(weighed.weight) if w]
    for place, k in enumerate(left):
        trial, weight = trials[k], weighed.weight[k]
        rest = sum(weighed.weight[j] for j in left[place:])
        try:
            posterior = fit.on_all_rows(
                trial, max(min(2, chains), round(weight * chains)), weight=weight,
                share=weight / rest, part=RUNNING,
            )  # fmt: skip
        except DivergenceError:
            if k == left[-1] and not members:
                raise
            log.warning("%s diverged on all the data, and is left out", trial.view)
            continue
        sound = fit.sound(trial.view, posterior)
        if left_out := len(posterior.healthy) * posterior.draws - len(sound):
            log.info("%d networks diverged from the training rows and are left out", left_out)
        members.append(Member(trial.view, posterior, sound, weight, weighed.factors[k]))
    total = sum(member.weight for member in members)
    members = [replace(member, weight=member.weight / total) for member in members]
    return Learned(members, weighed.scale, weighed.strangeness, [], "", weighed.scales)


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
    """The given settings that are not None, with defaults for the rest."""
    return Settings(**{name: value for name, value in options.items() if value is not None})
