"""One table: plans and runs of its views, on folds and on all rows.

A fold is a chain of one run: chain c learns from all rows except those of fold c, and predicts
these. Dynamics and the prior's scale are one plan, made on all rows. The run on all rows starts
where these chains ended.
"""

from __future__ import annotations

import hashlib
import math
import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from natural_langevin._internal.atomic import write
from natural_langevin._internal.chains import Params
from natural_langevin._internal.object_store import is_url
from natural_langevin.data.streams import Subsets
from natural_langevin.langevin import Langevin
from natural_langevin.posterior.networks import chunks
from natural_langevin.posterior.plan import Plan
from natural_langevin.posterior.posterior import Posterior
from natural_langevin.recipe import pace
from natural_langevin.recipe.decide import Asked
from natural_langevin.run import time_limit
from natural_langevin.run.loop import DivergenceError
from natural_langevin.run.problem.step_size_checks import known_step_size
from natural_langevin.run.run import Options
from natural_langevin.tabular.predictive import Networks
from natural_langevin.tabular.settings import AUTO, USUAL_FOLDS, Settings
from natural_langevin.tabular.views import View

#: Rows that a network is asked for to see whether it is sound.
SOUND_ROWS = 500
#: Folds of the usual number are run until so many rows have been held out, and so many at least.
ENOUGH_HELD_OUT, FEWEST_FOLDS = 1000, 2
#: Networks evaluated at once.
AT_ONCE = 64
#: The part of a run's usual length that folds have, its fewest steps, and draws of a chain.
PART, FEWEST_STEPS, DRAWS = 4, 500, 25
#: Of rows with dates: the parts after which the future begins for chains that learn how wide it
#: is, rows of it that they are asked for, and different dates that it takes.
PARTS, MOST_LATER, FEWEST_TIMES = (0.5, 0.75), 250, 30
#: The run on all rows may have so many times the usual steps, while its chains do not agree: of 18
#: fits 17 gain by three, those of little noise up to .12 nats; five give no more
#: (lab/notes/tabular.md).
LONGER = 3
#: Where a call has so many seconds: the part of them for the first plan, and when folds are over.
PLANNING, COMPARING = 0.3, 0.45
#: A view on folds may take this part of what was spent before in any case: its descent is where the
#: last run begins.
LEAST = 0.5


@dataclass(frozen=True)
class Trial:
    """A view's plan, its networks' predictions for the rows of every fold, and the end of its
    chains: weights and states of the likelihoods, (chain, ...). ``later``: what chains that saw the
    past alone say of rows after it."""

    view: View
    plan: Plan
    folds: list[Networks]
    end: tuple[Params, Params]
    later: list[Networks] = field(default_factory=list)


class Past(NamedTuple):
    """Rows up to some moment, some of those after it, and how long after it these are."""

    seen: Tensor
    asked: Tensor
    after: Tensor


class Clock:
    """What is left of ``seconds``; of None, everything."""

    def __init__(self, seconds: float | None = None) -> None:
        time_limit.TimeLimit(seconds)  # for its check
        self.seconds, self._began = seconds, time_limit.clock()

    @property
    def spent(self) -> float:
        """Seconds since the call began."""
        return time_limit.clock() - self._began

    def until(self, part: float) -> float | None:
        """Seconds until this part of the time is over; None without a limit."""
        return None if self.seconds is None else part * self.seconds - self.spent


@dataclass(frozen=True, eq=False)
class TableFit:
    """Everything of a fit that does not depend on the view. ``x``: encoded rows, ``y``: targets
    in their own units, ``folds``: rows held out in turn.

    ``counts`` (n,), where rows have weights: how often each is repeated, ``num_data`` data in all.
    ``checkpoint``: a folder from which the same fit continues. ``past``: of tables with dates, rows
    that more chains see and are asked for."""

    x: Tensor
    y: Tensor
    settings: Settings
    folds: list[Tensor]
    counts: Tensor | None = None
    num_data: int | None = None
    device: str | None = None
    progress: bool = False
    checkpoint: str | os.PathLike[str] | None = None
    clock: Clock = field(default_factory=Clock)
    past: list[Past] = field(default_factory=list)
    #: The first sampler of every view, whose network the others have too.
    samplers: dict[View, Langevin] = field(default_factory=dict)

    @property
    def first_scale(self) -> float | None:
        """The prior's scale where it is not searched for: before a run that is given fewer steps
        than the search would take."""
        steps = self.settings.given_steps
        return 1.0 if steps is not None and steps < FEWEST_STEPS else None

    def plan(self, view: View, prior_scale: float | None = None) -> Plan:
        """The recipe's plan for a run of the view on all rows."""
        known = self._folder(f"plan {view}")
        if known is not None and known.exists():
            return Plan.from_json(known.read_text(encoding="utf-8"))
        rows = self._repeated
        sampler = self._sampler(view, self.settings.chains, len(rows), prior_scale)
        limit = self.clock.until(PLANNING)
        settings = self.settings
        batch = settings.given_batch and min(settings.given_batch, len(rows))
        plan = sampler.plan(
            self._data(view, rows), steps=settings.given_steps, batch_size=batch,
            seconds=None if limit is None else max(limit, 0.1),
        )  # fmt: skip
        plan = replace(plan, seconds=None)  # which are those of the plan
        if settings.prior_variance == AUTO and plan.prior_scale is None:
            plan = replace(plan, prior_scale=prior_scale)
        if known is not None:
            known.parent.mkdir(parents=True, exist_ok=True)
            write(known, plan.to_json().encode())
        return plan

    def on_folds(self, view: View, plan: Plan) -> Trial:
        """The view on the folds; ``DivergenceError`` where a chain is lost."""
        rows = self._repeated
        seen = [(~torch.isin(rows, fold)).nonzero().flatten() for fold in self.folds]
        seen += [torch.isin(rows, past.seen).nonzero().flatten() for past in self.past]
        size = max(map(len, seen))  # where one sees fewer, some of them more than once
        every = [own[torch.arange(size) * len(own) // size] for own in seen]
        data = Subsets(*self._data(view, rows), torch.stack(every))
        steps = self.settings.given_steps
        steps = max(FEWEST_STEPS, plan.steps // PART) if steps is None else -(-steps // 2)
        short = replace(
            plan, steps=steps, end=None, draws=DRAWS, batch_size=min(plan.batch_size, size)
        )
        sampler = self._sampler(view, len(seen), size, seed=1)
        seconds, took = None, self._pace(sampler, data, short)
        if (left := self.clock.until(COMPARING)) is not None:
            short = replace(short, steps=min(steps, max(10, int(left / 2 / took))))
            seconds = max(left, LEAST * self.clock.spent)
        run = self._run(
            sampler, data, short, f"comparing {view} on held-out rows", trial=True, seconds=seconds
        )
        if len(run.healthy) < len(seen):
            raise DivergenceError(f"a chain of {view} diverged")
        asked = [*self.folds, *(past.asked for past in self.past)]
        said = [
            networks(run, view.inputs(self.x[some]), [chain]) for chain, some in enumerate(asked)
        ]
        count = len(self.folds)
        weights, learned = ({k: v[:count] for k, v in tree.items()} for tree in ended(run))
        return Trial(view, plan, said[:count], (weights, learned), said[count:])

    def on_all_rows(
        self,
        trial: Trial,
        chains: int,
        *,
        weight: float = 1.0,
        share: float = 1.0,
        part: float = 1.0,
    ) -> Posterior:
        """The view's posterior of all rows, from where its chains before ended. Views of a mixture
        have the most steps of one run together, each by its ``weight``, or ``LONGER`` times
        the usual ones. Where time is limited, it has a ``share`` of what is left up to a ``part``
        of all."""
        view, plan = trial.view, trial.plan
        if (end := plan.end) is not None:
            most = max(LONGER * end.of, round(weight * end.most))
            plan = replace(plan, end=replace(end, most=most))
        rows = self._repeated
        sampler = self._sampler(view, chains, len(rows))
        plan = replace(plan, draws=self.settings.draws)
        begin = None
        if trial.end[0] and plan.units is None:
            count = len(next(iter(trial.end[0].values())))
            own = torch.arange(chains) % count
            weights, learned = ({k: v[own] for k, v in tree.items()} for tree in trial.end)
            begin = weights, learned
        data, seconds, title = self._data(view, rows), None, f"learning from all rows ({view})"
        took = self._pace(sampler, data, plan)
        if (left := self.clock.until(part)) is not None and self.settings.given_steps is None:
            steps, seconds = max(10, int(share * left / took)), max(share * left, 0.1)
            if self.checkpoint is None:  # the clock ends it: steps are cheaper once burn-in is over
                steps = int(sampler.given.settings.time.more * steps)
            plan = replace(plan, steps=steps, end=None)
        return self._run(sampler, data, plan, title, begin=begin, seconds=seconds)

    def sound(self, view: View, posterior: Posterior) -> Tensor:
        """The numbers of the networks that explain the training rows about as well as the others.

        A network whose ln p is a nat per row below that of the better ones (their upper quartile)
        is no draw of the posterior, under which it has e^-n of their density: its chain ran away
        without becoming infinite."""
        rows = self._repeated
        some = rows[torch.linspace(0, len(rows) - 1, min(len(rows), SOUND_ROWS)).long()]
        x, y = self._data(view, some)
        fit = networks(posterior, x).law(view.outcome).log_prob(y)
        fit = fit.flatten(2).sum(-1) if fit.ndim > 2 else fit
        fit = fit.double().mean(1).nan_to_num(nan=-math.inf)
        fine = (fit >= fit.quantile(0.75) - 1) & fit.isfinite()
        return fine.nonzero().flatten()

    @property
    def _repeated(self) -> Tensor:
        """Every row as often as it counts."""
        rows = torch.arange(len(self.x))
        return rows if self.counts is None else rows.repeat_interleave(self.counts)

    def _data(self, view: View, rows: Tensor) -> tuple[Tensor, Tensor]:
        return view.inputs(self.x)[rows], view.targets(self.y)[rows]

    def _sampler(
        self,
        view: View,
        chains: int,
        rows: int,
        prior_scale: float | None = None,
        seed: int = 0,
    ) -> Langevin:
        """Of chains that learn from so many rows, repeated ones among them."""
        total = len(self.x) if self.counts is None else int(self.counts.sum())
        found = view.sampler(
            chains=chains,
            seed=self.settings.seed + seed,
            num_data=max(1, round((self.num_data or total) * rows / total)),
            device=self.device,
            prior_scale=prior_scale,
            network_of=self.samplers.get(view),
        )
        self.samplers.setdefault(view, found)
        return found

    def _folder(self, name: str) -> Path | None:
        if self.checkpoint is None:
            return None
        if is_url(self.checkpoint):
            raise ValueError(f"tables are checkpointed in a folder, got {self.checkpoint}")
        label = "".join(c if c.isalnum() else "-" for c in name)[:60]
        digest = hashlib.sha256(name.encode()).hexdigest()[:12]  # long names begin alike
        return Path(self.checkpoint) / f"{label}-{digest}"

    def _run(
        self,
        sampler: Langevin,
        data: Any,
        plan: Plan,
        title: str,
        *,
        trial: bool = False,
        begin: tuple[Params, Params] | None = None,
        seconds: float | None = None,
    ) -> Posterior:
        options = Options(
            checkpoint=self._folder(title),
            every=max(1, plan.steps // 10),
            progress=title if self.progress else False,
            trial=trial,
            partial=False,
            begin=begin,
            probe=False,  # which would cost more than the run itself
        )
        ends = seconds if options.checkpoint is None else None  # otherwise steps are counted
        return sampler.sampled(data, Asked(seconds=ends), options, plan)

    def _pace(self, sampler: Langevin, data: Any, plan: Plan) -> float:
        """Seconds of a step of a plan, where time is limited: these are spent as well."""
        if self.clock.seconds is None:
            return math.inf
        motion = sampler.motion.on(sampler.problem.on(data))
        size = plan.schedule() or known_step_size(sampler.given.step_size)
        return pace.of_steps(motion, plan.batch_size, size, sampler.given.settings.time)[0]


def networks(posterior: Posterior, x: Tensor, chains: Sequence[int] | None = None) -> Networks:
    """The predictions of every network of these chains (default: the healthy ones), on the CPU."""
    chains = posterior.healthy if chains is None else list(chains)
    if not chains:
        raise DivergenceError("every chain diverged: there is nothing to predict with")
    everywhere = posterior.processes.gather_chains  # several processes have some of the chains each
    samples, like = {k: everywhere(s) for k, s in posterior.samples.items()}, posterior.last
    x = x.to(next(iter(like.values())))
    with torch.no_grad():
        every = chunks(samples, chains, AT_ONCE, like=like)
        outputs = torch.cat([posterior.outputs(some, x).cpu() for some in every])
    variance = posterior.learned.get("variance")
    if variance is not None:
        variance = variance[chains].cpu().repeat_interleave(posterior.draws)
    return Networks(outputs, variance)


def ended(posterior: Posterior) -> tuple[Params, Params]:
    """Where all chains ended, those of other processes too, and what likelihoods learned."""
    everywhere = posterior.processes.gather_chains
    return {k: everywhere(v) for k, v in posterior.last.items()}, dict(posterior.learned)


def pasts(time: Tensor, most: int = MOST_LATER) -> list[Past]:
    """At the PARTS of the rows, in the order of time, the rows up to there and at most ``most`` of
    those after it; none where there are fewer than FEWEST_TIMES different times.

    >>> [(len(past.seen), past.asked.tolist()) for past in pasts(torch.arange(40.0), 3)]
    [(20, [20, 29, 39]), (30, [30, 34, 39])]
    """
    if len(time.unique()) < FEWEST_TIMES:
        return []
    found = []
    for part in PARTS:
        moment = time.quantile(part, interpolation="lower")
        after = (time > moment).nonzero().flatten()
        after = after[time[after].argsort()]
        if not len(after):
            continue
        some = after[torch.linspace(0, len(after) - 1, min(len(after), most)).long()]
        found.append(Past((time <= moment).nonzero().flatten(), some, time[some] - moment))
    return found


def split(
    count: int, folds: int, seed: int, labels: NDArray[Any] | None, most: int = 500
) -> list[Tensor]:
    """Rows of every fold, of one size; with ``labels`` every class is spread over all folds. Of
    many rows fewer than the usual number tell enough."""
    from sklearn.model_selection import KFold, StratifiedKFold

    enough = labels is not None and np.bincount(labels).max() >= folds
    kind = (StratifiedKFold if enough else KFold)(folds, shuffle=True, random_state=seed % 2**32)
    generator = np.random.default_rng(seed + 1)
    with warnings.catch_warnings():  # a class of fewer rows than folds is in some of them only
        warnings.simplefilter("ignore", UserWarning)
        parts = [generator.permutation(held) for _, held in kind.split(np.empty(count), labels)]
    size = min(*map(len, parts), most)
    if folds == USUAL_FOLDS:
        parts = parts[: max(FEWEST_FOLDS, -(-ENOUGH_HELD_OUT // size))]
    return [torch.as_tensor(np.sort(part[:size])) for part in parts]
