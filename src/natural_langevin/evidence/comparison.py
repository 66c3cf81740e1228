"""Comparison of models by their marginal likelihoods."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from natural_langevin._internal.html import shown
from natural_langevin.evidence.marginal import Evidence


@dataclass(frozen=True)
class Comparison:
    """Models by descending evidence; ``differences`` are to the best, in nats, with ``errors``."""

    names: tuple[str, ...]
    evidences: tuple[Evidence, ...] = field(repr=False)

    @property
    def differences(self) -> list[float]:
        """ln Z of every model minus that of the best."""
        return [e.value - self.evidences[0].value for e in self.evidences]

    @property
    def errors(self) -> list[float]:
        """Standard errors of the differences: 0 for the best."""
        first = self.evidences[0].error
        return [0.0, *(math.hypot(e.error, first) for e in self.evidences[1:])]

    @property
    def probabilities(self) -> list[float]:
        """Posterior probabilities of the models, with equal prior probabilities."""
        terms = [math.exp(d) for d in self.differences]
        return [t / sum(terms) for t in terms]

    def _repr_html_(self) -> str:
        known = zip(self.names, self.evidences, self.differences, self.probabilities, strict=True)
        rows = [
            (name, f"{e.value:.2f} ± {e.error:.2g}", f"{d:.2f}", f"{p:.3f}")
            for name, e, d, p in known
        ]
        return shown("Models", rows, head=("model", "ln Z", "difference", "probability"))

    def __str__(self) -> str:
        width = max(len(name) for name in self.names)
        rows = zip(
            self.names, self.evidences, self.differences, self.errors, self.probabilities,
            strict=True,
        )  # fmt: skip
        return "\n".join(
            f"{name:>{width}}  ln Z {e.value:12.2f} +- {e.error:<6.2g}  difference {d:9.2f} +- "
            f"{s:<6.2g}  probability {p:.3f}"
            for name, e, d, s, p in rows
        )


def compare(evidences: Mapping[str, Evidence] | Sequence[Evidence]) -> Comparison:
    """A table of models, the best first. All must be of the same data.

    ``evidences``: a dictionary by name, or a list, whose indices are then the names."""
    named = (
        dict(evidences)
        if isinstance(evidences, Mapping)
        else {str(k): e for k, e in enumerate(evidences)}
    )
    if not named:
        raise ValueError("give at least one evidence to compare")
    other = next((e for e in named.values() if not isinstance(e, Evidence)), None)
    if other is not None:
        raise TypeError(
            f"compare takes results of log_marginal_likelihood, got {type(other).__name__}"
        )
    data = {e.posterior.config["data"] for e in named.values()}
    if len(data) > 1:
        raise ValueError(
            f"these evidences are of {len(data)} different data sets: marginal likelihoods compare "
            "models of the same data"
        )
    order = sorted(named, key=lambda name: -named[name].value)
    return Comparison(tuple(order), tuple(named[name] for name in order))
