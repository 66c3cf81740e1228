"""What a posterior says of labelled rows, gathered batch by batch, and its scores at the end."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from natural_langevin import metrics
from natural_langevin.likelihoods import mixtures
from natural_langevin.posterior.posterior import Posterior
from natural_langevin.tabular.target import Target

BINS = 15
LEVELS = tuple(round(0.1 * k, 1) for k in range(1, 10))
#: The central interval that predict gives and coverage is quoted for.
INTERVAL = 0.9
#: "At least this sure": below it the posterior is counted as not answering.
SURE = (0.0, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99)
#: A regression's predictions are kept for at most this many rows, to be drawn.
DRAWN = 200


def noise_of_networks(posterior: Posterior) -> Tensor:
    """The observation variance that belongs to every network of the ensemble: (network, 1)."""
    sigma = posterior.sigma
    assert sigma is not None
    return sigma[posterior.healthy].square().repeat_interleave(posterior.draws)[:, None]


class ClassScores:
    """Accuracy, negative log-likelihood in nats, Brier score and calibration error."""

    def __init__(self, posterior: Posterior, target: Target) -> None:
        self._posterior, self._target = posterior, target
        self._rows: list[tuple[Tensor, Tensor, Tensor, Tensor]] = []

    def add(self, x: Tensor, y: Tensor) -> None:
        p = self._posterior.predict(x, keep_samples=False)
        assert p.total is not None
        self._rows.append((p.mean.cpu(), y, p.total.cpu(), p.epistemic.cpu()))

    def result(self) -> dict[str, Any]:
        p, y, total, epistemic = (torch.cat(column) for column in zip(*self._rows, strict=True))
        return {
            "scores": {
                "accuracy": metrics.accuracy(p, y),
                "nll": metrics.nll(p, y),
                "brier": metrics.brier(p, y),
                "ece": metrics.expected_calibration_error(p, y, bins=BINS),
            },
            "baseline": self._guess(y),
            "reliability": reliability(p, y),
            "answers": answers(p, y),
            "uncertainty": histogram("entropy, nats", total, epistemic, high=math.log(p.shape[1])),
        }

    def _guess(self, y: Tensor) -> dict[str, float]:
        """The training rows' shares for every row, where they are known."""
        if not self._target.shares:
            return {}
        shares = torch.tensor(self._target.shares).expand(len(y), -1)
        return {"accuracy": metrics.accuracy(shares, y), "nll": metrics.nll(shares, y)}


class NumberScores:
    """Root-mean-square error, negative log-likelihood and coverage, in the target's own units."""

    def __init__(self, posterior: Posterior, target: Target) -> None:
        self._posterior, self._target = posterior, target
        self._noise = noise_of_networks(posterior)
        self._rows: list[tuple[Tensor, ...]] = []

    def add(self, x: Tensor, y: Tensor) -> None:
        p = self._posterior.predict(x)
        assert p.samples is not None
        assert p.total is not None
        means, noise, y = p.samples[..., 0].cpu(), self._noise.cpu(), y[:, 0]
        ends = [(1 - INTERVAL) / 2, (1 + INTERVAL) / 2]
        self._rows.append(
            (
                p.mean[:, 0].cpu().double() - y.double(),
                y.double(),
                mixtures.log_density(y, means, noise),
                mixtures.cdf(y, means, noise),
                p.total[:, 0].cpu().double().sqrt(),
                p.epistemic[:, 0].cpu().double().sqrt(),
                *(mixtures.quantile(level, means, noise) for level in ends),
            )
        )

    def result(self) -> dict[str, Any]:
        columns = [torch.cat(column) for column in zip(*self._rows, strict=True)]
        error, y, log_p, below, total, epistemic, low, high = columns
        scale = self._target.scale
        # The probability below y says at once which central intervals hold y.
        distance = 2 * (below - 0.5).abs()
        observed = [float((distance <= level).double().mean()) for level in LEVELS]
        plain = 0.5 * (y.square() + math.log(2 * math.pi))
        return {
            "scores": {
                "rmse": float(error.square().mean().sqrt()) * scale,
                "nll": float(-log_p.mean()) + math.log(scale),
                "coverage": float((distance <= INTERVAL).double().mean()),
            },
            "baseline": {
                "rmse": float(y.square().mean().sqrt()) * scale,
                "nll": float(plain.mean()) + math.log(scale),
            },
            "coverage": {"level": list(LEVELS), "observed": observed},
            "intervals": self._intervals(y, y + error, low, high),
            "uncertainty": histogram(
                f"standard deviation of {self._target.name}", total * scale, epistemic * scale
            ),
        }

    def _intervals(self, truth: Tensor, mean: Tensor, low: Tensor, high: Tensor) -> dict[str, Any]:
        """Half widths, at the surest and the least sure tenth and in the middle, beside that of a
        guess that looks at no input; and some rows in full. All in the target's own units."""
        scale, shift = self._target.scale, self._target.mean
        half = scale * (high - low) / 2
        levels = torch.tensor([0.1, 0.5, 0.9], dtype=half.dtype)
        blind = math.sqrt(2) * float(torch.erfinv(torch.tensor(INTERVAL))) * scale
        some = torch.linspace(0, len(truth) - 1, min(DRAWN, len(truth))).long()
        rows = {"truth": truth, "mean": mean, "low": low, "high": high}
        if not all(bool(v.isfinite().all()) for v in rows.values()):
            return {}  # run away from the data: there is nothing to draw, and the scores say so
        return {
            "half": torch.quantile(half, levels).tolist(),
            "blind": blind,
            "rows": {name: (shift + scale * v[some]).tolist() for name, v in rows.items()},
        }


def scorer(posterior: Posterior, target: Target) -> ClassScores | NumberScores:
    return (ClassScores if target.classes else NumberScores)(posterior, target)


def reliability(p: Tensor, y: Tensor) -> dict[str, list[float]]:
    """Mean confidence, accuracy and count in equal-width bins; empty ones left out."""
    found = metrics.reliability(p, y, bins=BINS)
    return {name: column.tolist() for name, column in found._asdict().items()}


def answers(p: Tensor, y: Tensor) -> dict[str, Any]:
    """What happens if it answers only when it is sure enough, and how sure it is on average.

    ``answered[k]`` rows have a confidence (the largest probability) of at least ``sure[k]``, and
    ``right[k]`` of them are right. ``spread`` is the standard deviation that the share of right
    answers would have if every row were right with the probability that was said.

    >>> found = answers(torch.tensor([[0.95, 0.05], [0.4, 0.6]]), torch.tensor([0, 0]))
    >>> found["answered"][0], found["right"][0], found["answered"][5], found["right"][5]
    (2, 1, 1, 1)
    """
    confidence, predicted = p.double().max(1)
    if not bool(confidence.isfinite().all()):
        return {}
    right = predicted == y
    least = [confidence >= level for level in SURE]
    return {
        "sure": list(SURE),
        "answered": [int(chosen.sum()) for chosen in least],
        "right": [int((chosen & right).sum()) for chosen in least],
        "confidence": float(confidence.mean()),
        "spread": float((confidence * (1 - confidence)).clamp_min(0).sum().sqrt() / len(y)),
    }


def histogram(
    label: str, total: Tensor, epistemic: Tensor, *, high: float | None = None, bins: int = 24
) -> dict[str, Any]:
    """Counts of total and epistemic uncertainty on the same bins, from 0 to ``high``."""
    top = float(max(total.max(), epistemic.max())) if high is None else high
    top = top if 0 < top < math.inf else 1.0
    counts = [
        torch.histc(v.double().clamp(0, top), bins=bins, min=0.0, max=top).long().tolist()
        for v in (total, epistemic)
    ]
    return {"label": label, "high": top, "total": counts[0], "epistemic": counts[1]}
