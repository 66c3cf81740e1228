"""Scores of a predictor on labelled rows, accumulated batch by batch."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from natural_langevin import metrics
from natural_langevin.posterior.posterior import Posterior
from natural_langevin.tabular.predictive import Predictive
from natural_langevin.tabular.target import Target

BINS = 15
LEVELS = tuple(round(0.1 * k, 1) for k in range(1, 10))
#: The central interval that predict gives and coverage is quoted for.
INTERVAL = 0.9
#: "At least this sure": below it the predictor is counted as not answering.
SURE = (0.0, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99)
#: A regression's predictions are kept for at most this many rows, to be drawn.
DRAWN = 200
#: Confusions and verdicts by class are kept for at most this many classes.
MOST_CONFUSED = 30


class Predictor(Protocol):
    """A model with uncertainty: ``recipe.Learned``, or a saved posterior."""

    @property
    def best(self) -> Posterior:
        """The posterior to diagnose."""

    @property
    def inputs(self) -> Callable[[Tensor], Tensor]:
        """What its networks are given of encoded columns."""

    def uncertainty(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Class probabilities (n, class) and the epistemic part of their entropy (n,)."""

    def predictive(self, x: Tensor) -> Predictive:
        """The distribution of a number."""


class ClassScores:
    """Accuracy, negative log-likelihood in nats, Brier score, calibration error and AUC."""

    def __init__(self, predictor: Predictor, target: Target) -> None:
        self._predictor, self._target = predictor, target
        self._rows: list[tuple[Tensor, Tensor, Tensor]] = []

    def add(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Adds rows, inputs and labels. Returns which answers are right, and how sure it was."""
        p, epistemic = self._predictor.uncertainty(x)
        self._rows.append((p, y, epistemic))
        confidence, predicted = p.max(1)
        return predicted == y, confidence

    def result(self) -> dict[str, Any]:
        """Scores, baseline and the tables of the report, of all rows added."""
        p, y, epistemic = (torch.cat(column) for column in zip(*self._rows, strict=True))
        total = torch.special.entr(p).sum(-1)
        found = {
            "scores": {
                "accuracy": metrics.accuracy(p, y),
                "nll": metrics.nll(p, y),
                "brier": metrics.brier(p, y),
                "ece": metrics.expected_calibration_error(p, y, bins=BINS),
            }
            | _auc(p, y),
            **self._guess(p, y),
            "reliability": reliability(p, y),
            "answers": answers(p, y),
            "uncertainty": histogram("entropy, nats", total, epistemic, high=math.log(p.shape[1])),
        }
        if p.shape[1] <= MOST_CONFUSED:
            pairs = torch.zeros(p.shape[1], p.shape[1], dtype=torch.int64)
            pairs.index_put_((y, p.argmax(1)), torch.ones_like(y), accumulate=True)
            names = self._target.classes
            found["confusion"] = {"classes": list(names), "counts": pairs.tolist()}
            found["slices"] = _class_slices(p, y, names)
        return found

    def _guess(self, p: Tensor, y: Tensor) -> dict[str, dict[str, float]]:
        """The training rows' shares for every row, where they are known, and by how much chance
        lets it be better or worse."""
        if not self._target.shares:
            return {"baseline": {}, "chance": {}}
        shares = torch.tensor(self._target.shares).expand(len(y), -1)
        found = {"accuracy": metrics.accuracy(shares, y), "nll": metrics.nll(shares, y)}
        own = p.double().gather(1, y[:, None]).clamp_min(torch.finfo(torch.float64).tiny)
        gained = (own / shares.gather(1, y[:, None])).log()[:, 0]
        return {"baseline": found, "chance": {"nll": _error(gained)}}


def _error(differences: Tensor) -> float:
    """The standard error of their mean, infinite for one row."""
    count = len(differences)
    return float(differences.std()) / math.sqrt(count) if count > 1 else math.inf


def _auc(p: Tensor, y: Tensor) -> dict[str, float]:
    """Area under the curve of true against false positives; of several classes the average of one
    against the rest, over the classes that have rows."""
    from sklearn.metrics import roc_auc_score

    there = y.unique().tolist()
    if len(there) < 2 or not bool(p.isfinite().all()):
        return {}
    asked = [1] if p.shape[1] == 2 else there
    found = [roc_auc_score((y == k).numpy(), p[:, k].numpy()) for k in asked]
    return {"auc": float(np.mean(found))}


def _class_slices(p: Tensor, y: Tensor, names: tuple[str, ...]) -> list[dict[str, Any]]:
    """For the rows predicted to be of each class: how sure it says it is, and how often right."""
    confidence, predicted = p.double().max(1)
    found = []
    for k, name in enumerate(names):
        own = predicted == k
        if bool(own.any()):
            sure = confidence[own]
            hit, variance = (y[own] == k).sum(), (sure * (1 - sure)).sum()
            found.append(of_slice(f"predicted {name}", len(sure), hit, sure.sum(), variance))
    return found


class NumberScores:
    """Root-mean-square error, negative log-likelihood and coverage, in the target's own units."""

    def __init__(self, predictor: Predictor, target: Target) -> None:
        self._predictor, self._target = predictor, target
        self._rows: list[tuple[np.ndarray, ...]] = []
        self._ends = (math.nan, math.inf)

    def add(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Rows more: inputs and targets. Returns which intervals hold the truth, and at what
        level."""
        p, truth = self._predictor.predictive(x), y[:, 0].numpy()
        below = p.cdf(truth)
        if self._target.task == "count":  # the middle of the step that the count is
            below = (below + p.cdf(truth - 1)) / 2
        else:  # zero is such a step where nothing is below it, and the upper end
            self._ends = (0.0 if p.may_be_zero else math.nan), p.upper
            below = np.where(truth <= self._ends[0], below / 2, below)
            below = np.where(truth >= p.upper, (1 + p.cdf(np.nextafter(truth, 0))) / 2, below)
        low, high = p.interval(INTERVAL)
        said = np.full(len(truth), INTERVAL)
        if self._target.task == "count":  # an interval of whole numbers holds more than it must
            said = p.cdf(high) - p.cdf(low - 1)
        elif p.may_be_zero or p.upper < math.inf:  # and so does one with a probability at its end
            said = p.cdf(high) - np.where(low > 0, (1 - INTERVAL) / 2, 0)
        epistemic = np.sqrt(p.epistemic)
        self._rows.append(
            (truth, p.mean, p.log_prob(truth), below, p.std, epistemic, low, high, said)
        )
        return torch.as_tensor((low <= truth) & (truth <= high)), torch.as_tensor(said)

    def result(self) -> dict[str, Any]:
        """Scores, baseline and the tables of the report, of all rows added."""
        columns = [torch.as_tensor(np.concatenate(c)) for c in zip(*self._rows, strict=True)]
        y, mean, log_p, below, total, epistemic, low, high, said = columns
        # The probability below y says at once which central intervals hold y.
        distance = 2 * (below - 0.5).abs()
        observed = [float((distance <= level).double().mean()) for level in LEVELS]
        guess, zero, column = self._target.guess, self._ends[0] == 0, y[:, None]
        if self._target.task == "count":
            plain = guess.counts(column)[:, 0]
        else:
            plain = guess.numbers(column, zeros=zero, upper=self._ends[1])[:, 0]
        inside = (low <= y) & (y <= high)
        return {
            "scores": {
                "rmse": float((mean - y).square().mean().sqrt()),
                "nll": float(-log_p.mean()),
                "coverage": float(inside.double().mean()),
            },
            "baseline": {
                "rmse": float((y - self._target.mean).square().mean().sqrt()),
                "nll": float(plain.mean()),
            },
            "chance": {"nll": _error(log_p + plain)},
            "coverage": {"level": list(LEVELS), "observed": observed},
            "intervals": self._intervals(y, mean, low, high, said),
            "slices": _thirds(mean, inside, said),
            "uncertainty": histogram(
                f"standard deviation of {self._target.name}", total, epistemic
            ),
        }

    def _intervals(
        self, truth: Tensor, mean: Tensor, low: Tensor, high: Tensor, said: Tensor
    ) -> dict[str, Any]:
        """Half widths, at the surest and the least sure tenth and in the middle, beside that of a
        guess that ignores the inputs; their nominal probability, on average; and some rows in
        full."""
        half = (high - low) / 2
        levels = torch.tensor([0.1, 0.5, 0.9], dtype=half.dtype)
        blind = math.sqrt(2) * float(torch.erfinv(torch.tensor(INTERVAL))) * self._target.scale
        some = torch.linspace(0, len(truth) - 1, min(DRAWN, len(truth))).long()
        rows = {"truth": truth, "mean": mean, "low": low, "high": high}
        if not all(bool(v.isfinite().all()) for v in rows.values()):
            return {}  # run away from the data: there is nothing to draw, and the scores say so
        outside = ((mean < low) | (mean > high)) & (low < high)  # 0 alone holds no mean but 0
        return {
            "half": torch.quantile(half, levels).tolist(),
            "blind": blind,
            "said": float(said.mean()),
            "mean_outside": int(outside.sum()),
            "rows": {name: v[some].tolist() for name, v in rows.items()},
        }


def of_slice(
    name: str, rows: int, hit: float | Tensor, said: float | Tensor, variance: float | Tensor
) -> dict[str, Any]:
    """Of the ``rows`` of a slice the ``share`` that was hit beside what was ``said``, with the
    standard deviation that chance gives the share; from sums over these rows."""
    spread = max(0.0, float(variance)) ** 0.5 / rows
    share, level = float(hit) / rows, float(said) / rows
    return {"name": name, "rows": rows, "said": level, "share": share, "spread": spread}


def _thirds(mean: Tensor, inside: Tensor, said: Tensor) -> list[dict[str, Any]]:
    """Coverage where it predicts little, something and much."""
    names = ("the lowest third", "the middle third", "the highest third")
    found = []
    for name, rows in zip(names, mean.argsort().tensor_split(3), strict=True):
        if len(rows):
            count, level = len(rows), float(said[rows].mean())
            sums = inside[rows].sum(), count * level, count * level * (1 - level)
            found.append(of_slice(f"{name} of predictions", count, *sums))
    return found


def scorer(predictor: Predictor, target: Target) -> ClassScores | NumberScores:
    """The scores that the target calls for."""
    return (ClassScores if target.classes else NumberScores)(predictor, target)


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
    label: str, total: Tensor, epistemic: Tensor, *, high: float | None = None
) -> dict[str, Any]:
    """Counts of total and epistemic uncertainty on the same bins, from 0 to ``high``."""
    top = float(max(total.max(), epistemic.max())) if high is None else high
    top = top if 0 < top < math.inf else 1.0
    counts = [
        torch.histc(v.double().clamp(0, top), bins=24, min=0.0, max=top).long().tolist()
        for v in (total, epistemic)
    ]
    return {"label": label, "high": top, "total": counts[0], "epistemic": counts[1]}
