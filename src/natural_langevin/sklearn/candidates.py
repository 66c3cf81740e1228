"""What the estimators choose between: priors, temperatures and step sizes.

Two kinds of posterior are offered where the user leaves it open, because tables differ in kind. Of
noisy ones, few data per weight, a prior whose variance is integrated out at temperature 1 predicts
best; where classes can be told apart almost surely it is too timid, and a wide prior at a low
temperature does better. Held-out data tell which is which (``stacking``). How the few candidates
were found: docs/tabular.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from natural_langevin import priors

#: Of weights whose prior variance is integrated out; only the damping depends on it.
SUPPOSED_VARIANCE = 0.5
#: The prior variance offered beside the learned one.
WIDE = 3.0
#: Temperatures by whether the variance is learned: cold chains would fall into that density's peak.
TEMPERATURES = {True: (1.0,), False: (0.3, 0.03)}
#: Step sizes, by preconditioner. Those of the Fisher metrics are nearly free of units.
STEP_SIZES = {
    "qdop": (0.3, 0.1),
    "dop": (0.3, 0.1),
    "rmsprop": (0.03, 0.01, 0.003),
    "sgld": (1.0, 0.3, 0.1, 0.03),
}


@dataclass(frozen=True)
class Candidate:
    """``variance``: of a Gaussian prior; None: every layer's own, integrated out.

    ``step_size`` is the user's own, or, where ``automatic``, the first of a falling schedule."""

    variance: float | None
    temperature: float
    step_size: Any
    automatic: bool

    @property
    def prior(self) -> priors.Prior:
        if self.variance is None:
            return priors.NormalInverseGamma()
        return priors.Gaussian(variance=self.variance)

    @property
    def supposed_variance(self) -> float:
        return SUPPOSED_VARIANCE if self.variance is None else self.variance

    def __str__(self) -> str:
        variance = "learned" if self.variance is None else f"{self.variance:g}"
        step_size = f", step size {self.step_size:g}" if self.automatic else ""
        return f"prior variance {variance}, temperature {self.temperature:g}{step_size}"

    def as_dict(self) -> dict[str, Any]:
        return {
            "prior_variance": "learned" if self.variance is None else self.variance,
            "temperature": self.temperature,
            "step_size": self.step_size,
        }


def candidates(
    variance: float | str, temperature: float | str, step_size: Any, *, preconditioner: str
) -> list[Candidate]:
    """All that the user's settings leave open; what is not "auto" is as it was given."""
    variances: Sequence[float | None] = (None, WIDE)
    if variance != "auto":
        variances = (None,) if variance == "learned" else (float(variance),)
    found = []
    for v in variances:
        temperatures: Sequence[Any] = (temperature,)
        if temperature == "auto":
            temperatures = TEMPERATURES[v is None]
        for t in temperatures:
            automatic = isinstance(step_size, str) and step_size == "auto"
            sizes: Sequence[Any] = STEP_SIZES[preconditioner] if automatic else (step_size,)
            if automatic and float(t) < 1 and preconditioner in ("qdop", "dop"):
                sizes = sizes[1:]  # a cold chain gains nothing by the larger one
            found += [Candidate(v, float(t), size, automatic) for size in sizes]
    return found
