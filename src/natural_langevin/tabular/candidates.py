"""What the estimators choose between: priors, temperatures and step sizes.

A prior whose variance is integrated out, and one by fan-in, both at temperature 1: of noisy tables,
few data per weight, they predict best. Where classes can be told apart almost surely both are too
timid, and a wide prior at a low temperature does better. Held-out data tell which is which
(``weighing``). How these few were found: docs/tabular.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from natural_langevin import priors
from natural_langevin.tabular.settings import AUTO, Settings

#: Prior variances offered: every layer's own, integrated out; WIDE divided by a layer's inputs
#: (biases: WIDE); WIDE for all.
WIDE = 3.0
VARIANCES: Sequence[float | str] = ("learned", "fan_in", WIDE)
#: Temperatures offered with them. Under a learned variance cold chains would fall into the peak
#: of the prior's density, where all weights vanish.
TEMPERATURES = {"learned": (1.0,), "fan_in": (1.0,)}
COLD = (0.3, 0.03)
#: Step sizes, by preconditioner. Those of the Fisher metrics are nearly free of units.
STEP_SIZES = {
    "qdop": (0.01, 0.003),
    "dop": (0.01, 0.003),
    "rmsprop": (0.03, 0.01, 0.003, 0.001),
    "sgld": (0.3, 0.03, 0.003),
}
#: Where nothing is compared and there are too few data for a pilot run.
STEP_SIZE_OF_FEW = 0.005


@dataclass(frozen=True)
class Candidate:
    """``variance``: of a Gaussian prior, or "learned" or "fan_in".

    ``step_size`` is the user's own, or, where ``automatic``, the first of a falling schedule."""

    variance: float | str
    temperature: float
    step_size: Any
    automatic: bool

    def prior(self, network: nn.Module) -> priors.Prior | Mapping[str, priors.Prior]:
        """The prior that ``variance`` stands for, on this network's parameters."""
        if self.variance == "learned":
            return priors.NormalInverseGamma()
        if self.variance == "fan_in":
            return {
                name: priors.Gaussian(variance=WIDE / (p.shape[1] if p.ndim > 1 else 1))
                for name, p in network.named_parameters()
                if p.requires_grad
            }
        return priors.Gaussian(variance=float(self.variance))

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


def candidates(settings: Settings, *, cold: bool = True) -> list[Candidate]:
    """All that the user's settings leave open; what is not "auto" is as it was given.

    ``cold``: whether wide priors at low temperatures are among them, for classes. With a variance
    of the user's own, temperature 1, the posterior itself, is offered too."""
    variance, temperature = settings.prior_variance, settings.temperature
    step_size, preconditioner = settings.step_size, settings.preconditioner
    automatic = isinstance(step_size, str) and step_size == "auto"
    found = []
    wide = VARIANCES if cold else VARIANCES[:-1]
    for v in wide if variance == "auto" else (variance,):
        offered = TEMPERATURES.get(str(v), COLD if variance == "auto" else (1.0, *COLD))
        for t in offered if isinstance(temperature, str) else (temperature,):
            sizes: Sequence[Any] = (step_size,)
            if automatic:
                sizes = STEP_SIZES[preconditioner]
            if automatic and t < 1 and preconditioner in ("qdop", "dop"):
                sizes = sizes[1:]  # a cold chain gains nothing by the larger one
            found += [Candidate(v, t, size, automatic) for size in sizes]
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
