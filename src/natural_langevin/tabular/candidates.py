"""What the estimators choose between: priors, temperatures and step sizes.

A prior whose variance is integrated out, and one by fan-in, both at temperature 1: of noisy tables,
few data per weight, they predict best. Where classes can be told apart almost surely both are too
timid, and wider priors at a low temperature do better. Held-out data tell which is which
(``weighing``). How these few were found: lab/notes/tabular.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from natural_langevin import priors
from natural_langevin.tabular.settings import AUTO, Settings

#: Divided by a layer's inputs; it is that of a bias.
FAN_IN = {"unit_fan_in": 1.0, "fan_in": 3.0, "wide_fan_in": 10.0}
#: Variances and temperatures offered for numbers (of few rows, and of more) and for classes, the
#: first one to compare other things with. Under a learned variance (every layer's own, integrated
#: out) cold chains would fall into the peak of the prior's density, where all weights vanish. Where
#: targets have hardly any noise, a noise that is learned and the freedom that it gives the weights
#: hold each other up, and cold chains get down sooner: with two hidden layers, views are compared
#: by them. Fewer than COLD_FROM rows do not show where they are too sure.
OF_FEW_ROWS = (("unit_fan_in", 1.0), ("fan_in", 1.0), ("learned", 1.0))
OF_NUMBERS = (("unit_fan_in", 1.0), ("unit_fan_in", 0.1), ("fan_in", 1.0), ("fan_in", 0.1))
OF_CLASSES = (("fan_in", 1.0), ("learned", 1.0), ("wide_fan_in", 0.3), (1.0, 0.03))
COLD_FROM = 300
#: Offered beside temperature 1 where the variance is the user's own, of classes.
COLD = (0.3, 0.03)
#: The first step size tried, by preconditioner; of a network of several hidden layers it is a third
#: of it, as it is of a cold chain, which gains nothing by a larger one. Those of the Fisher metrics
#: are nearly free of units. Where a chain diverges, a third is tried, so often:
STEP_SIZES = {"qdop": 0.01, "dop": 0.01, "rmsprop": 0.01, "sgld": 0.03}
SMALLER, TRIES = 0.3, 4
#: Where nothing is compared and there are too few data for a pilot run.
STEP_SIZE_OF_FEW = 0.005


@dataclass(frozen=True)
class Candidate:
    """``variance``: of a Gaussian prior, or "learned", or of FAN_IN.

    ``step_size`` is the user's own, or, where ``automatic``, the first of a falling schedule."""

    variance: float | str
    temperature: float
    step_size: Any
    automatic: bool

    def variance_of(self, parameter: Tensor) -> float:
        """The variance of a Gaussian prior for this parameter: a number, or one by its fan-in."""
        if not isinstance(self.variance, str):
            return float(self.variance)
        return FAN_IN[self.variance] / (parameter.shape[1] if parameter.ndim > 1 else 1)

    def smaller(self) -> Candidate:
        """The same candidate with the next smaller step size."""
        return replace(self, step_size=float(f"{SMALLER * self.step_size:.2g}"))

    def __str__(self) -> str:
        named = isinstance(self.variance, str)
        variance = self.variance if named else f"{self.variance:g}"
        step_size = f", step size {self.step_size:g}" if self.automatic else ""
        return f"prior variance {variance}, temperature {self.temperature:g}{step_size}"

    def as_dict(self) -> dict[str, Any]:
        """Its settings as plain values, for files and tables."""
        return {
            "prior_variance": self.variance,
            "temperature": self.temperature,
            "step_size": self.step_size,
        }


def prior_of(runs: Sequence[Candidate], network: nn.Module) -> Any:
    """The prior of chains that have these candidates, one each: all "learned", or all Gaussian."""
    if runs[0].variance == "learned":
        return priors.NormalInverseGamma()
    found = {}
    for name, p in network.named_parameters():
        if p.requires_grad:
            variances = [one.variance_of(p) for one in runs]
            same = len(set(variances)) == 1
            value = variances[0] if same else torch.tensor(variances, dtype=torch.float64)
            found[name] = priors.Gaussian(variance=value)
    return found


def candidates(settings: Settings, *, classes: bool = True, rows: int = 0) -> list[Candidate]:
    """All that the user's settings leave open for so many rows; what is not "auto" is as it was
    given. With a variance of the user's own, temperature 1, the posterior itself, is offered, and
    of ``classes`` colder ones too."""
    variance, temperature = settings.prior_variance, settings.temperature
    automatic = isinstance(settings.step_size, str) and settings.step_size == AUTO
    offered: Sequence[tuple[float | str, float]] = OF_CLASSES
    if not classes:
        offered = OF_NUMBERS if rows >= COLD_FROM else OF_FEW_ROWS
    if variance != AUTO:
        colder = COLD if classes and not isinstance(variance, str) else ()
        offered = [(variance, t) for t in (1.0, *colder)]
    elif not classes and len(settings.layers) > 1:
        offered = sorted(offered, key=lambda one: one[1])
    if not isinstance(temperature, str):
        offered = [(v, float(temperature)) for v in dict(offered)]
    found = []
    for v, t in offered:
        step_size: Any = settings.step_size
        if automatic:
            step_size = STEP_SIZES[settings.preconditioner]
            if t < 1 or len(settings.layers) > 1:
                step_size = SMALLER * step_size
        found.append(Candidate(v, t, step_size, automatic))
    return found


def single(settings: Settings, *, few: bool) -> Candidate:
    """What runs where nothing is compared: a learned variance at temperature 1 for what is "auto".

    ``few``: a step size that suits most tables; otherwise a short pilot run looks for one."""
    step_size: Any = settings.step_size
    automatic = isinstance(step_size, str) and step_size == AUTO
    if automatic and few:
        step_size = STEP_SIZE_OF_FEW
    return Candidate(
        "learned" if settings.prior_variance == AUTO else settings.prior_variance,
        1.0 if isinstance(settings.temperature, str) else settings.temperature,
        step_size,
        automatic=False,
    )
