"""Plan: everything that a run will do, decided beforehand (``recipe.decide``) and frozen.

    plan = sampler.plan(data)                  # only searches for what was not given
    print(plan)                                # a table, with a reason for every line
    posterior = sampler.sample(data, plan=dataclasses.replace(plan, steps=5000))

A plan holds only numbers and strings, so that it can be stored as JSON. Metric, integrator and
prior are the sampler's; the plan names them and holds what was chosen for them: the prior's scale,
the friction, the step size.
"""

from __future__ import annotations

import json
import math
import textwrap
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch

from natural_langevin import schedules
from natural_langevin._internal.messages import shown
from natural_langevin.posterior.units import Units

#: Draws of every chain that are kept where nobody says how many.
DRAWS = 200
FORMAT = 7
#: Where chains start, but for weights that a sampler was given.
STARTS = ("auto", "model", "fan_in", "prior")
#: ``keep`` below which chains are not compared: that takes 4 draws, and thinning may halve them.
FEWEST_COMPARED = 8
#: By which part of its step size a run that loses chains begins again.
LESS = 10.0
#: The reason of what a user has chosen.
GIVEN = "given"


@dataclass(frozen=True)
class Descent:
    """The descent before sampling (see ``run.descent``): rounds of ``steps`` steps, until one
    lowers the loss by less than ``enough`` nats per sample."""

    rounds: tuple[int, ...]
    enough: float
    looks: int  # of a round, at the rows held out
    held_out: float  # the part of these
    fewest_rows: int  # of which one is held out
    most_held_out: int
    friction: float
    memory: float  # the weight of a batch in RMSProp's average
    length: float  # of a step in every weight at first, for networks of up to ``small`` weights
    small: int
    few: int  # steps between two looks at the clock, where time is limited
    batch: int | None = None  # rows of a minibatch, or as many as make ``epochs``; None: the run's
    epochs: int = 3  # of the first round at least

    def rows_of_batch(self, num_data: int, usual: int) -> int:
        """Rows of a minibatch of the descent; ``usual`` are those of the run."""
        if self.batch is None:
            return usual
        return min(usual, max(self.batch, self.epochs * num_data // self.rounds[0]))


@dataclass(frozen=True)
class EndRule:
    """The rule that ends a run whose length was not given (see ``run.until``).

    The first part has a fraction 1 / ``first_part`` of the steps, at least ``first_steps``. The run
    ends there if the chains agree and have ``ess`` effective draws in all, at ``rows`` of the
    inputs and around them. Otherwise it becomes burn-in, and a part ``growth`` times as long (or of
    all remaining steps) follows, of which the same is asked while steps remain. Of the two parts, a
    third is burn-in: the first, and the beginning of the next. ``remembered``: the batches that the
    metric of one part counts for in the average of the next."""

    first_part: int
    first_steps: int
    growth: int
    rows: int
    remembered: int
    ess: float


@dataclass(frozen=True)
class OpenEnd:
    """The end of a run whose length was not given: by the ``rule``, or after ``most`` steps in all.
    ``of``: the steps that this was made for; if the plan's steps are changed, they are run as
    given. A phase that was ``extended`` ends it."""

    of: int
    most: int
    rule: EndRule


@dataclass(frozen=True)
class Calibration:
    """Calibration of predictions on held-out rows: the power of class probabilities; or the share
    of the networks' distance from their mean that is kept, with the weights of noise levels and the
    noise variance that go with it."""

    sharpness: float | None = None
    spread: float | None = None
    widths: tuple[float, ...] = ()
    variance: float | None = None


@dataclass(frozen=True)
class Plan:
    """``recipe``: "auto" or "paper", which constants filled what was open. ``step_size``: a number,
    one per chain, or None, the sampler's own; ``falls_from``: the offset of a polynomial schedule
    where the search on held-out rows found it. ``chains``: None is the sampler's own number.
    ``burn_in`` and ``thin``: None is a third of the steps, and about ``draws`` draws.
    ``extended``: the steps of phases that went on beyond their end, 0 for others. ``attempts``: how
    often a run that loses chains begins again, ``gentler``.
    ``reasons``: why each is what it is, by line of the table; ``decided``: what it says there,
    so that the table names whatever was changed since."""

    recipe: str
    prior: str
    metric: str
    dynamics: str
    batch_size: int
    steps: int
    burn_in: int | None = None
    thin: int | None = None
    keep: int | None = None
    draws: int = DRAWS
    start: str = "model"
    chains: int | None = None
    descent: Descent | None = None
    prior_scale: float | None = None
    step_size: float | tuple[float, ...] | None = None
    falls_from: int | None = None
    friction: float | None = None
    control_variates: int | None = None
    end: OpenEnd | None = None
    until: str | None = None
    seconds: float | None = None
    exchange: int | None = None
    extended: tuple[int, ...] = ()
    attempts: int = 0
    calibrate: bool = True
    calibration: Calibration | None = None
    units: Units | None = None
    execution: str = "auto"
    measured: Mapping[str, Any] = field(default_factory=dict)
    reasons: Mapping[str, str] = field(default_factory=dict)
    decided: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.recipe not in ("auto", "paper"):
            raise ValueError(f'recipe must be "auto" or "paper", got {self.recipe!r}')
        if self.start not in (*STARTS, "given"):
            raise ValueError(f"start must be one of {', '.join(STARTS)}, got {self.start!r}")
        for name in ("prior_scale", "chains", "draws"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"{name} must be positive, got {value!r}")

    @property
    def by_recipe(self) -> bool:
        """Whether the run uses the recipe's dynamics."""
        return self.friction is not None

    @property
    def open_end(self) -> OpenEnd | None:
        """The end of a run of open length: none where steps, burn-in or thinning are given, or too
        few draws are kept to compare chains by."""
        chosen = self.burn_in is None and self.thin is None
        chosen &= self.keep is None or self.keep >= FEWEST_COMPARED
        return self.end if chosen and self.end is not None and self.end.of == self.steps else None

    def lengths(self) -> list[tuple[int, int, int]]:
        """Steps, burn-in and thinning of the parts of the run; a part runs only if the one before
        was too short."""
        end = self.open_end
        if end is None:
            return [self.usual(self.steps, self.burn_in, self.thin)]
        rule, left, parts = end.rule, end.most, list[tuple[int, int, int]]()
        steps, more = max(rule.first_steps, self.steps // rule.first_part), [*self.extended]
        while not parts or left >= parts[-1][0]:
            part = left if left < 2 * steps else steps
            # With the part before, a third of both; the metric is averaged anew.
            again = part * (rule.growth - 2) // (3 * rule.growth)
            part, burn_in, thin = self.usual(part, again if parts else None)
            steps = (more and more.pop(0)) or part
            thin *= 2 ** round(math.log2((steps - burn_in) / (part - burn_in)))
            parts.append((steps, burn_in, thin))
            left, steps = 0 if self.extended and not more else left - steps, rule.growth * steps
        return parts

    def longer(self, phase: int, steps: int) -> Plan:
        """The same with so many steps in a phase, and its burn-in; of a run of open length about as
        many draws are kept."""
        if self.open_end is not None:
            return replace(self, extended=(*[0] * phase, steps))
        _, burn_in, thin = self.lengths()[0]
        return replace(self, steps=steps, burn_in=burn_in, thin=thin, end=None)

    @property
    def may_begin_again(self) -> bool:
        """Whether it has attempts left, and the step size that was chosen for it."""
        if self.attempts == 0 or self.step_size is None:
            return False
        return self.decided.get("step_size") == _shown(self.step_size)

    @property
    def seconds_changed(self) -> bool:
        """Whether its seconds are others than those that its steps were chosen by."""
        return self.decided.get("seconds") != (None if self.seconds is None else str(self.seconds))

    def gentler(self) -> Plan:
        """The same with a tenth of the step size, and one attempt less."""
        before = _one(self.step_size)
        eta = float(f"{before / LESS:.2g}")
        why = f"{eta:.2g}, since chains were lost with {before:.2g}"
        heat = self.measured.get("heat")
        measured = dict(self.measured) | ({} if heat is None else {"heat": heat / LESS})
        return replace(
            self, step_size=eta, attempts=self.attempts - 1, measured=measured,
            reasons=dict(self.reasons) | {"step_size": why},
            decided=dict(self.decided) | {"step_size": _shown(eta)},
        )  # fmt: skip

    def usual(
        self, steps: int, burn_in: int | None = None, thin: int | None = None
    ) -> tuple[int, int, int]:
        """Steps, burn-in and thinning; by default burn-in is a third, and ``thin`` gives about
        ``draws`` draws."""
        burn_in = steps // 3 if burn_in is None else burn_in
        thin = max(1, (steps - burn_in) // self.draws) if thin is None else thin
        return steps, burn_in, thin

    def schedule(self) -> schedules.Schedule | None:
        """eta_t of a phase; None: the sampler's own.

        By the recipe it is constant; by the search on held-out rows it falls."""
        size = self.step_size
        if size is None:
            return None
        several = isinstance(size, tuple) and len(size) > 1
        value = torch.tensor(size, dtype=torch.float64) if several else _one(size)
        if self.falls_from is not None:
            return schedules.polynomial(value, offset=self.falls_from)
        return schedules.constant(value)

    def as_dict(self) -> dict[str, Any]:
        """Plain numbers and words, for ``posterior.config["plan"]``."""
        found: dict[str, Any] = json.loads(self.to_json())
        return found

    def to_json(self) -> str:
        """The plan as text, from which ``from_json`` makes the same plan."""
        return json.dumps({"format": FORMAT} | asdict(self), indent=1)

    @staticmethod
    def from_config(config: Mapping[str, Any]) -> Plan | None:
        """The plan in a run's configuration; None if there is none, or one of another version."""
        found = config.get("plan")
        if not isinstance(found, Mapping) or found.get("format") != FORMAT:
            return None
        return Plan.from_json(json.dumps(found))

    @staticmethod
    def from_json(text: str) -> Plan:
        """The plan that ``to_json`` wrote."""
        try:
            value = json.loads(text)
            if value.pop("format", None) != FORMAT:
                raise ValueError("it is of another version")
            value["units"] = Units.from_config(value)
            if (end := value["end"]) is not None:
                value["end"] = OpenEnd(**end | {"rule": EndRule(**end["rule"])})
            if (descent := value["descent"]) is not None:
                value["descent"] = Descent(**descent | {"rounds": tuple(descent["rounds"])})
            if (chosen := value["calibration"]) is not None:
                value["calibration"] = Calibration(**chosen | {"widths": tuple(chosen["widths"])})
            if isinstance(size := value["step_size"], list):
                value["step_size"] = tuple(size)
            return Plan(**value | {"extended": tuple(value["extended"])})
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ValueError(
                f"this is not a plan ({error}): give what plan.to_json() returned"
            ) from error

    def __str__(self) -> str:
        lines = [f"Plan by the recipe {self.recipe!r}: {self._in_short()}"]
        for name, value, why in self._rows():
            first, *rest = textwrap.wrap(why, 66) or [""]
            lines.append(f"  {name:<12} {value:<24} {first}".rstrip())
            lines += [f"  {'':<12} {'':<24} {more}" for more in rest]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return shown(f"Plan by the recipe {self.recipe!r}: {self._in_short()}", self._rows())

    def _in_short(self) -> str:
        (first, _, _), *more = self.lengths()
        steps = f"{first} steps"
        if more:
            most = first + sum(part[0] for part in more)
            steps = f"{first} steps, up to {most} until chains agree"
        return f"{steps}, minibatches of {self.batch_size}"

    def as_decided(self) -> Plan:
        """The same, whose table names what is changed from now on."""
        return replace(self, decided=dict(self._table()))

    def _rows(self) -> list[tuple[str, str, str]]:
        """What, its value, and why."""
        why, was = self._reasons(), dict(self.decided)
        for name, own in (("burn_in", self.burn_in), ("thin", self.thin)):
            if own is None:  # follows from the steps
                was.pop(name, None)
        return [
            (name, value, why[name] if was.get(name, value) == value else f"was {was[name]}")
            for name, value in self._table()
        ]

    def _reasons(self) -> dict[str, str]:
        """Why each is what it is; of prior, metric and dynamics also their arguments."""
        dynamics, known = self.dynamics, dict(self.reasons)
        if dynamics.startswith("Overdamped") or "'euler'" in dynamics:
            dynamics += ": its bias is of first order in the step size"
        arguments = {"metric": self.metric, "dynamics": dynamics}
        if self.prior_scale is None:
            arguments["prior"] = self.prior
        for name, value in arguments.items():
            known[name] = f"{known[name]}: {value}" if name in known else value
        kept = f"about {self.draws} draws of every chain" if self.thin is None else GIVEN
        usual = dict.fromkeys(name for name, _ in self._table()) | {
            "prior": "no other scale was compared",
            "bias prior": "that of a weight with one input",
            "burn_in": GIVEN if self.burn_in is not None else "a third of the steps",
            "thin": kept if self.keep is None else f"{kept}, doubled until keep={self.keep}",
            "units": "columns or targets are of unusual size",
            "calibration": "by rows that are held out, where there are any",
            "execution": "the fastest way that supports the run",
        }
        if not self.calibrate:
            usual["calibration"] = GIVEN
        elif corrected := [known[k] for k in ("sharpness", "spread") if k in known]:
            usual["calibration"] = corrected[0]
        if self.execution != "auto":
            usual["execution"] = GIVEN
        found = {name: known.get(name) or why or GIVEN for name, why in usual.items()}
        if len(parts := self.lengths()) > 1:
            more = ", ".join(str(steps) for steps, _, _ in parts[1:])
            found["steps"] += f"; a part of it, then {more} until chains agree"
        return found

    def _table(self) -> list[tuple[str, str]]:
        steps, burn_in, thin = self.lengths()[0]
        size = "as given" if self.step_size is None else _shown(self.step_size)
        scale = self.prior_scale
        rows: list[tuple[str, Any]] = [
            (
                "prior",
                self.prior.partition("(")[0] if scale is None else f"N(0, {scale:g} * 2/fan_in)",
            ),
            *([] if scale is None else [("bias prior", f"N(0, {2 * scale:g})")]),
            ("metric", self.metric.partition("(")[0]),
            ("dynamics", self.dynamics.partition("(")[0]),
            ("friction", self.friction),
            ("chains", self.chains),
            ("step_size", size),
            ("anchors", self.control_variates),
            ("batch_size", self.batch_size),
            ("start", self.start + (", then descent" if self.descent else "")),
            ("steps", steps),
            ("burn_in", burn_in),
            ("thin", thin),
            ("keep", self.keep),
            ("until", self.until),
            ("seconds", self.seconds),
            ("exchange", self.exchange),
            ("units", None if self.units is None else "standard"),
            ("calibration", "on" if self.calibrate else "off"),
            ("execution", self.execution),
        ]
        return [(name, _brief(str(v))) for name, v in rows if v is not None]


def _one(size: float | tuple[float, ...] | None) -> float:
    assert size is not None
    return size[0] if isinstance(size, tuple) else size


def _brief(text: str) -> str:
    return text if len(text) <= 24 else f"{text[:21]}..."


def _shown(size: float | tuple[float, ...]) -> str:
    return ", ".join(f"{v:g}" for v in (size if isinstance(size, tuple) else (size,)))
