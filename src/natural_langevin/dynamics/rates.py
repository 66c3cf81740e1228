"""``Rates``: the schedules' values at a step; ``RatesTable``: those of a whole run.

A row of the table holds eta_t of every chain, gamma_t and mu_t. Only this file knows the layout of
a row. The host knows some things beforehand, so that a step can skip work that is not needed:
whether the metric takes this batch in (gamma_t > 0), whether it has seen a batch before, and
whether a periodic refresh is due.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from natural_langevin import schedules


class Kind(NamedTuple):
    """The kind of a step, as far as compiled or captured code depends on it."""

    adapts: bool = True  # gamma_t > 0: the metric takes this batch in
    first: bool = False  # there is no earlier metric: this batch's own is applied
    tunes: bool = False  # the integrator may change its step size (``Integrator.tunes``)
    explores: bool = False  # the temperature is 0 at this step (``schedules.stages``)
    refreshes: bool = False  # the metric's eigenvectors are due (``Preconditioner.refreshed``)
    settles: bool = False  # the metric takes this batch in, and will stand still after burn-in


class Rates(NamedTuple):
    """The schedules' values at one step."""

    step_size: Tensor  # eta_t: (chain,)
    decay: Tensor  # gamma_t: ()
    mean: Tensor  # mu_t: ()
    kind: Kind = Kind()

    def on(self, step_size: Tensor) -> Rates:
        """The same with this eta, on its device and in its precision."""
        return self._replace(
            step_size=step_size, decay=self.decay.to(step_size), mean=self.mean.to(step_size)
        )


@dataclass(eq=False)
class RatesTable:
    """The rates of steps ``start``, ``start`` + 1, ...: ``values`` has a row for each.

    ``tuned``: in so many first steps the integrator may change its step size; ``refresh_steps``:
    see ``Preconditioner``; ``settles``: whether the metric adapts only in a burn-in that ends;
    ``explores``: which steps are at temperature 0."""

    values: Tensor
    start: int = 0
    tuned: int = 0
    refresh_steps: int = 0
    settles: bool = False
    explores: schedules.Stages | None = None

    @staticmethod
    def build(
        step_size: schedules.Value | schedules.Schedule,
        decay: schedules.Value | schedules.Schedule = 0.0,
        mean_rate: schedules.Value | schedules.Schedule | None = None,
        *,
        start: int = 0,
        stop: int,
        chains: int,
        tuned: int = 0,
        refresh_steps: int = 0,
        settles: bool = False,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> RatesTable:
        """The table of steps ``start`` to ``stop - 1``; schedules are checked here.

        >>> table = RatesTable.build(0.1, lambda t: float(t < 2), stop=3, chains=2)
        >>> [table.kind(t).adapts for t in range(3)], table.row(2).step_size
        ([True, True, False], tensor([0.1000, 0.1000]))
        """
        columns = [
            schedules.tabulate(step_size, start, stop, name="step_size", chains=chains),
            schedules.tabulate(decay, start, stop, name="decay", chains=1, high=1.0),
            schedules.tabulate(
                0.0 if mean_rate is None else mean_rate, start, stop,
                name="mean_rate", chains=1, high=1.0,
            ),
        ]  # fmt: skip
        explores = schedules.stages(step_size)
        if explores is not None:  # the running mean, too, is of what is sampled
            still = torch.tensor([explores(step) for step in range(start, stop)])[:, None]
            columns[2] = torch.where(still, 0.0, columns[2])
        values = torch.cat(columns, dim=1).to(dtype=dtype, device=device)
        return RatesTable(values, start, tuned, refresh_steps, settles, explores)

    def __len__(self) -> int:
        return len(self.values)

    @property
    def step_size(self) -> Tensor:
        """eta_t: (step, chain)."""
        return self.values[:, :-2]

    def remember(self, batches: float) -> None:
        """Makes the metric's average forget its starting value more slowly, as if that were the
        average of so many batches: gamma becomes gamma / (1 + batches gamma)."""
        decay = self.values[:, -2]
        decay /= 1 + batches * decay

    def rise(self, steps: int) -> None:
        """Makes the first so many steps begin near 0 and grow."""
        first = self.step_size[: max(steps, 0)]
        first *= torch.arange(1, len(first) + 1).to(first)[:, None] / max(steps, 1)

    def of_chains(self, ids: Tensor) -> RatesTable:
        """The table of these chains."""
        shared = self.values[:, -2:]
        values = torch.cat([self.step_size[:, ids], shared], dim=1)
        return replace(self, values=values)

    def without_stages(self, dtype: torch.dtype | None = None) -> RatesTable:
        """The table in which no step explores, tunes or refreshes, in this precision."""
        return RatesTable(self.values.to(dtype=dtype), start=self.start, settles=self.settles)

    def sampled(self, start: int) -> Tensor:
        """eta_t of the steps from ``start`` on whose iterates may be kept, (step, chain); of all,
        where none may."""
        explores, rows = self.explores, range(start - self.start, len(self))
        kept = [k for k in rows if explores is None or not explores(self.start + k)]
        return self.step_size[kept or list(rows)] if explores else self.step_size[rows.start :]

    def same_stage(self, step: int, count: int) -> int:
        """How many of the ``count`` steps from this one on come before the stage changes."""
        if self.explores is None:
            return count
        here = self.explores(step)
        return next((k for k in range(count) if self.explores(step + k) != here), count)

    @cached_property
    def _adapts(self) -> list[bool]:
        """Whether the metric adapts, step by step; read from the device once."""
        return (self.values[:, -2] > 0).tolist()

    @property
    def kinds(self) -> set[bool]:
        """The answers, over all steps of the table, to whether the metric adapts in a step."""
        return set(self._adapts)

    def kind(self, step: int) -> Kind:
        """What kind of step this is."""
        adapts = self._adapts[step - self.start]
        explores = self.explores is not None and self.explores(step)
        return Kind(
            adapts,
            first=adapts and step == 0,
            tunes=step < self.tuned,
            explores=explores,
            refreshes=adapts and self.refresh_steps > 0 and step % self.refresh_steps == 0,
            settles=adapts and self.settles,
        )

    def adapts_from(self, step: int) -> bool:
        """Whether the metric uses any batch from this step on."""
        return any(self._adapts[step - self.start :])

    def row(self, step: int) -> Rates:
        """The rates of one step."""
        return _read(self.values[step - self.start], self.kind(step))

    def at(self, step: Tensor | int, kind: Kind) -> Rates:
        """Like ``row``, also for a ``step`` that is on the device and stays there. The table starts
        at step 0."""
        if isinstance(step, int):
            return _read(self.values[step], kind)
        # index_select, because indexing with a 0-d tensor would wait for its value on the host.
        return _read(self.values.index_select(0, step.reshape(1))[0], kind)


def _read(row: Tensor, kind: Kind) -> Rates:
    return Rates(step_size=row[:-2], decay=row[-2], mean=row[-1], kind=kind)
