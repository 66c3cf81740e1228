"""All scores of one evaluation, with an explanation of each, beside the blind guess (see
``metrics.blind``). Its parameters are fitted to the targets that are scored, which favours it by
about k / (2 n) nats for n targets and k parameters.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from natural_langevin._internal.messages import shown
from natural_langevin.likelihoods.predictive import Mixture
from natural_langevin.metrics import blind, classification, regression, selective

#: A score: its name, its value, what it means.
Row = tuple[str, str, str]
#: Central intervals whose coverage a regression is scored by, and the one that is judged.
LEVELS = (0.5, 0.9, 0.95)
INTERVAL = 0.9
#: A gap between what is claimed and what is true that is worth a word, beyond its error.
GAP = 0.05
#: Nats per sample by which one network may do better: it was chosen on the samples it is scored on.
WORSE = 0.05


@dataclass(frozen=True)
class ClassificationScores:
    """Scores of class probabilities on ``count`` labelled samples. ``str()`` explains them."""

    count: int
    nll: float
    accuracy: float
    brier: float
    calibration_error: float
    classwise_calibration_error: float
    risk_coverage_area: float
    ood_auroc: float | None
    nll_error: float | None = None  # Monte-Carlo standard error, from the draws' correlation
    blind_nll: float | None = None  # of the labels' frequencies, without looking at the inputs
    single_nll: float | None = None  # of the one network that does best on these very samples

    @staticmethod
    def of(
        probabilities: Tensor, y: Tensor, *, inside: Tensor, outside: Tensor | None
    ) -> ClassificationScores:
        """``inside`` and ``outside``: epistemic uncertainty here and on a second dataset."""
        confidence, predicted = probabilities.max(1)
        return ClassificationScores(
            count=len(y),
            nll=classification.nll(probabilities, y),
            accuracy=classification.accuracy(probabilities, y),
            brier=classification.brier(probabilities, y),
            calibration_error=classification.expected_calibration_error(probabilities, y),
            classwise_calibration_error=classification.classwise_calibration_error(
                probabilities, y
            ),
            risk_coverage_area=selective.risk_coverage(-confidence, predicted != y).area,
            ood_auroc=None if outside is None else selective.ood_auroc(inside, outside),
            blind_nll=blind.classes(y, probabilities.shape[1]) if _varied(y) else None,
        )

    @property
    def verdicts(self) -> list[str]:
        """Reasons not to use the predictions as they are, each with a remedy; empty if there is
        none."""
        found = _against_others(self.nll, self.nll_error, self.blind_nll, self.single_nll)
        # The gap of a perfectly calibrated forecast is not 0 either: about 1 / sqrt(count).
        if self.calibration_error > GAP + 2 / self.count**0.5:
            found.append(
                f"Confidence and accuracy are {self.calibration_error:.3f} apart on average: "
                "rescale with metrics.TemperatureScaling, fitted on held-out samples."
            )
        return found

    def _rows(self) -> list[Row]:
        error = (self.accuracy * (1 - self.accuracy) / self.count) ** 0.5
        return [
            ("accuracy", f"{self.accuracy:.2%}", f"± {error:.2%}, one standard error"),
            ("negative log-likelihood", f"{self.nll:.4f}", _nll_words(self.nll_error)),
            *_other_rows(self.blind_nll, self.single_nll),
            ("Brier score", f"{self.brier:.4f}", "0 to 2; lower is better"),
            ("calibration error", f"{self.calibration_error:.4f}",
             "mean gap between confidence and accuracy"),
            ("  classwise", f"{self.classwise_calibration_error:.4f}", "over every class's own"),
            ("risk–coverage area", f"{self.risk_coverage_area:.4f}",
             "error rate, averaged over how many samples are answered"),
            *_ood_row(self.ood_auroc),
        ]  # fmt: skip

    def __str__(self) -> str:
        return "\n".join([_table(f"{self.count} samples", self._rows()), *self.verdicts])

    def _repr_html_(self) -> str:
        return shown(f"{self.count} samples", self._rows(), self.verdicts)


@dataclass(frozen=True)
class RegressionScores:
    """Scores of a regression on ``count`` samples. ``coverage``: level -> fraction inside."""

    count: int
    nll: float
    rmse: float
    crps: float
    coverage: dict[float, float]
    risk_coverage_area: float
    ood_auroc: float | None
    nll_error: float | None = None  # Monte-Carlo standard error, from the draws' correlation
    blind_nll: float | None = None  # of one distribution for all samples
    single_nll: float | None = None  # of the one network that does best on these very samples
    claimed: dict[float, float] | None = None  # what intervals of counts, or with 0, say they hold

    @staticmethod
    def of(law: Mixture, y: Tensor, *, outside: Tensor | None) -> RegressionScores:
        """Of a predictive distribution over the targets ``y``."""
        mean = law.mean
        y = y.reshape(mean.shape).double()
        inside = law.epistemic.reshape(len(y), -1).sum(1)
        squared = (mean - y).square().reshape(len(y), -1).sum(1)
        levels = torch.tensor(LEVELS, dtype=torch.float64)
        lower, upper = law.icdf((1 - levels) / 2), law.icdf((1 + levels) / 2)
        return RegressionScores(
            count=len(y),
            nll=float(-law.log_prob(y).mean()),
            rmse=regression.rmse(mean, y),
            crps=float(law.crps(y).mean()),
            coverage={
                level: regression.interval_coverage(low, high, y)
                for level, low, high in zip(LEVELS, lower, upper, strict=True)
            },
            risk_coverage_area=selective.risk_coverage(inside, squared).area,
            ood_auroc=None if outside is None else selective.ood_auroc(inside, outside),
            blind_nll=_blind(law, y) if _varied(y) else None,
            claimed=None if law.is_normal else {
                level: float(law.between(low, high).mean())
                for level, low, high in zip(LEVELS, lower, upper, strict=True)
            },
        )  # fmt: skip

    def _claim(self, level: float) -> tuple[float, float]:
        """What intervals say that they hold, and the standard error of counting that."""
        claim = level if self.claimed is None else self.claimed[level]
        return claim, max(0.0, claim * (1 - claim) / self.count) ** 0.5

    def _right(self, level: float) -> str:
        claim, error = self._claim(level)
        whole = "" if self.claimed is None else f"{claim:.1%} "
        return f"{whole}± {error:.1%} if the intervals are right"

    @property
    def verdicts(self) -> list[str]:
        """Reasons not to use the predictions as they are, each with a remedy; empty if there is
        none."""
        found = _against_others(self.nll, self.nll_error, self.blind_nll, self.single_nll)
        if not math.isfinite(self.rmse):
            found.append(
                "The mean of some predictions is not finite, because the distribution of some "
                "networks has none: use predict(x, quantiles=(0.05, 0.5, 0.95)), which exist."
            )
        level, inside = INTERVAL, self.coverage[INTERVAL]
        claim, error = self._claim(level)
        if abs(inside - claim) > GAP + 3 * error:
            wide = "wide" if inside > claim else "narrow"
            said = f"{level:.0%}" if self.claimed is None else f"{level:.0%} (that say {claim:.0%})"
            other = (
                'give the likelihood another noise level, such as Gaussian(sigma="rmse")'
                if self.claimed is None
                else "give another likelihood"
            )
            found.append(
                f"Intervals of {said} hold {inside:.0%} of the targets, so they are too {wide}: "
                f"{other}, or widths from metrics.ConformalIntervals on held-out samples."
            )
        return found

    def _rows(self) -> list[Row]:
        return [
            ("root mean squared error", f"{self.rmse:.4g}", "in the units of y"),
            ("negative log-likelihood", f"{self.nll:.4f}", _nll_words(self.nll_error)),
            *_other_rows(self.blind_nll, self.single_nll),
            ("CRPS", f"{self.crps:.4g}", "in the units of y; an absolute error for distributions"),
            *(
                (f"inside {level:.0%} intervals", f"{found:.1%}", self._right(level))
                for level, found in self.coverage.items()
            ),
            ("risk–coverage area", f"{self.risk_coverage_area:.4g}",
             "squared error, averaged over how many samples are answered"),
            *_ood_row(self.ood_auroc),
        ]  # fmt: skip

    def __str__(self) -> str:
        return "\n".join([_table(f"{self.count} samples", self._rows()), *self.verdicts])

    def _repr_html_(self) -> str:
        return shown(f"{self.count} samples", self._rows(), self.verdicts)


def _varied(y: Tensor) -> bool:
    """Whether the targets vary; if not, a blind guess is always right and no comparison is made."""
    return bool((y != y[:1]).any())


def _against_others(
    nll: float, error: float | None, blind_nll: float | None, single_nll: float | None
) -> list[str]:
    """Warnings if predictions are worse than a blind guess or than one network, beyond the
    Monte-Carlo error."""
    sure = 2 * (error if error is not None and math.isfinite(error) else 0.0)
    found = []
    if blind_nll is not None and nll - sure > blind_nll:
        found.append(
            f"The predictions are worse than a blind guess ({nll:.3f} against {blind_nll:.3f} nats "
            "per sample): look at the scale of inputs and targets, at whether the rows of x and y "
            "belong together, and at posterior.diagnose(x)."
        )
    elif single_nll is not None and nll - sure > single_nll + WORSE:
        found.append(
            f"One network alone predicts better ({single_nll:.3f} against {nll:.3f} nats per "
            "sample). With few training rows this is expected: networks differ, and the best of "
            "them was picked on these samples. Otherwise some draws are poor: "
            "posterior.diagnose(x) says whether chains have not converged; sample(data, "
            'until="ess:400") runs until there are enough draws.'
        )
    return found


def _other_rows(blind_nll: float | None, single_nll: float | None) -> list[Row]:
    known = {
        "  of a blind guess": (blind_nll, "one distribution for all, without looking at inputs"),
        "  of one network": (single_nll, "the best of the draws on these very samples"),
    }
    return [
        (k, f"{round(v, 4) + 0.0:.4f}", words) for k, (v, words) in known.items() if v is not None
    ]


def _nll_words(error: float | None) -> str:
    known = error is not None and math.isfinite(error)
    return "nats per sample; lower is better" + (f"; Monte-Carlo ± {error:.1g}" if known else "")


def _ood_row(auroc: float | None) -> list[Row]:
    if auroc is None:
        return []
    return [("out-of-distribution AUROC", f"{auroc:.3f}", "0.5 is chance, 1 is perfect separation")]


def _table(title: str, rows: list[Row]) -> str:
    names, values = max(len(r[0]) for r in rows), max(len(r[1]) for r in rows)
    lines = [f"{name:<{names}}  {value:>{values}}  {words}" for name, value, words in rows]
    return "\n".join([title, *lines])


def _blind(law: Mixture, y: Tensor) -> float:
    """Of targets of the kind that the predictive distribution is one of."""
    y = y.double().reshape(len(y), -1)
    guess = blind.Guess.of(y)
    found = guess.counts(y) if law.is_discrete else guess.numbers(y, zeros=law.least == 0)
    return float(found.sum(1).mean())
