"""Settings of a fit to a table."""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal

import torch
from torch import nn

from natural_langevin import preconditioners

AUTO: Literal["auto"] = "auto"
ACTIVATIONS: dict[str, type[nn.Module]] = {"relu": nn.ReLU, "tanh": nn.Tanh, "silu": nn.SiLU}
#: The paper's abbreviations: (Q)DOP, (quasi-)diagonal outer product.
PRECONDITIONERS: dict[str, Callable[[], preconditioners.Preconditioner]] = {
    "qdop": preconditioners.QuasiDiagonalFisher,
    "dop": preconditioners.DiagonalFisher,
    "rmsprop": preconditioners.RMSProp,
    "sgld": preconditioners.Euclidean,
}
#: Fewer rows than this are sampled in float64, where it costs nothing.
TINY = 150
#: 400 MB for every network that is kept; beyond it, a table is not what one has.
MOST_PARAMETERS = 100_000_000
#: Folds, and the rows that one must have at least; with fewer there is no cross-validation.
USUAL_FOLDS, FEWEST_PER_FOLD = 4, 3
#: Hidden units of a layer, and rows from which there are two layers of them.
UNITS, DEEP_FROM = 50, 500
#: Rows from which there is no second network of classes.
MANY = 5000


class SettingError(ValueError):
    """An invalid setting: ``name``, and what is wrong with it."""

    def __init__(self, name: str, problem: str) -> None:
        super().__init__(f"{name} {problem}")
        self.name, self.problem = name, problem


@dataclass(frozen=True)
class Settings:
    """Everything that decides a run besides its data.

    ``hidden``: units of every hidden layer (none: a linear model); "auto" is one layer of 50 below
    500 rows and two from there on; held-out rows choose between these, a linear model, and of
    classes in fewer than 5,000 rows one hidden layer. ``activation``: "auto" is ReLU for classes;
    for numbers held-out rows choose between ReLU and tanh. ``noise``: of a regression or count,
    "auto" or a name of ``outcome.KINDS``; ``log``: whether a positive target is sampled as its
    logarithm, "auto" or a bool. Each "auto" is chosen on rows held out in ``folds`` folds, at most
    ``held_out`` in each; with 0 folds it is the first option.

    ``preconditioner``, ``prior_variance``, ``temperature`` ("auto": 1), ``step_size`` (a number or
    a schedule), ``steps`` and ``batch_size`` are those of ``Langevin``, whose recipe fills what is
    "auto". ``prior_variance``: a number, "learned" (a layer's own, integrated out), or "fan_in"
    (3 divided by a layer's inputs). ``chains``: of the last
    runs together; ``draws`` networks are kept of each. ``seconds``: the time limit; None: as long
    as the recipe needs. ``refit``: whether ``train`` fits again to all rows after scoring the
    held-out ones. ``precision``: "auto" is float64 below 150 rows and float32 from there on."""

    hidden: tuple[int, ...] | str = AUTO
    activation: str = AUTO
    preconditioner: str = "qdop"
    prior_variance: float | str = AUTO
    temperature: float | str = AUTO
    step_size: Any = AUTO
    noise: str = AUTO
    log: bool | str = AUTO
    steps: int | str = AUTO
    chains: int = 4
    batch_size: int | str = AUTO
    draws: int = 50
    folds: int = USUAL_FOLDS
    held_out: int = 1000
    precision: str = AUTO
    seed: int = 0
    seconds: float | None = None
    refit: bool = True

    def __post_init__(self) -> None:
        if not (isinstance(self.hidden, str) and self.hidden == AUTO):
            object.__setattr__(self, "hidden", _sizes(self.hidden))
        tables = {
            "activation": {*ACTIVATIONS, AUTO},
            "preconditioner": set(PRECONDITIONERS),
            "precision": {"float32", "float64", AUTO},
        }
        for name, table in tables.items():
            if getattr(self, name) not in table:
                raise SettingError(
                    name, f"must be one of {sorted(table)}, got {getattr(self, name)!r}"
                )
        _positive_or("prior_variance", self.prior_variance, AUTO, "learned", "fan_in")
        _positive_or("temperature", self.temperature, AUTO)
        size = self.step_size
        if not callable(size) and (isinstance(size, str) or not isinstance(size, Iterable)):
            try:
                _positive_or("step_size", size, AUTO)
            except SettingError:
                raise SettingError(
                    "step_size", f'must be "auto", a positive number or a schedule, got {size!r}'
                ) from None
        for name in ("steps", "chains", "batch_size", "draws", "held_out"):
            value = getattr(self, name)
            if name in ("steps", "batch_size") and isinstance(value, str) and value == AUTO:
                continue
            if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < 1:
                raise SettingError(name, f"must be a positive integer, got {value!r}")
        folds: Any = self.folds
        whole = isinstance(folds, numbers.Integral) and not isinstance(folds, bool)
        if not whole or folds < 0 or folds == 1:
            raise SettingError("folds", f"must be 0 or an integer of at least 2, got {folds!r}")
        if self.seconds is not None:
            _positive_or("seconds", self.seconds)
        if not 0 <= self.seed < 2**63:
            raise SettingError("seed", f"must be a number from 0 to 2**63 - 1, got {self.seed}")

    def of_rows(self, rows: int) -> Settings:
        """With the network and the precision that suit so many rows, where they are "auto".

        >>> Settings().of_rows(100).hidden, Settings().of_rows(40_000).precision
        ((50,), 'float32')
        """
        hidden: Any = self.hidden
        if hidden == AUTO:
            hidden = (UNITS,) if rows < DEEP_FROM else (UNITS, UNITS)
        precision = self.precision
        if precision == AUTO:
            precision = "float64" if rows < TINY else "float32"
        return replace(self, hidden=hidden, precision=precision)

    @property
    def layers(self) -> tuple[int, ...]:
        """Units of the hidden layers, once they are known (``of_rows``)."""
        if isinstance(self.hidden, str):
            raise TypeError('hidden is "auto": call of_rows(n) first')
        return self.hidden

    @property
    def dtype(self) -> torch.dtype:
        """The precision of networks and inputs."""
        return torch.float64 if self.precision == "float64" else torch.float32

    @property
    def function(self) -> type[nn.Module]:
        """The activation; "auto" begins with ReLU."""
        return ACTIVATIONS["relu" if self.activation == AUTO else self.activation]

    @property
    def given_steps(self) -> int | None:
        """Steps of a run, where they were given."""
        return None if isinstance(self.steps, str) else int(self.steps)

    @property
    def given_batch(self) -> int | None:
        """Rows of a minibatch, where they were given."""
        return None if isinstance(self.batch_size, str) else int(self.batch_size)

    def folds_of(self, rows: int) -> int:
        """How many folds there will be: fewer, or none, where there are too few data."""
        fewer = min(int(self.folds), rows // FEWEST_PER_FOLD)
        return fewer if fewer > 1 else 0

    def to_json(self) -> dict[str, Any]:
        """As plain values, for run.json."""
        found, size = asdict(self), self.step_size
        found["hidden"] = self.hidden if isinstance(self.hidden, str) else list(self.hidden)
        found["step_size"] = size if isinstance(size, str | int | float) else repr(size)
        return found

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> Settings:
        """As ``to_json`` wrote it; anything else is a ValueError or a TypeError."""
        found = Settings(**value)
        for field in fields(Settings):
            if str(field.type) == "int" and type(getattr(found, field.name)) is not int:
                raise TypeError(f"{field.name} is {getattr(found, field.name)!r}")
        return found


def _sizes(sizes: Any) -> tuple[int, ...]:
    if type(sizes) is not bool and isinstance(sizes, numbers.Integral):
        sizes = (int(sizes),)
    given: list[Any] = list(sizes) if isinstance(sizes, Iterable) else [sizes]
    # True is an integer to Python, and not a number of units.
    if any(type(n) is bool or not isinstance(n, numbers.Integral) or n < 1 for n in given):
        raise SettingError("hidden", f"must be positive integers such as (50,), got {sizes!r}")
    return tuple(int(n) for n in given)


def _positive_or(name: str, value: Any, *words: str) -> None:
    if isinstance(value, str) and value in words:
        return
    real = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if not real or not 0 < float(value) < math.inf:
        remedy = " or ".join(f'"{word}"' for word in words)
        raise SettingError(name, f"must be a positive number or {remedy}, got {value!r}")
