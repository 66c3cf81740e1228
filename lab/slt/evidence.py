"""Marginal likelihoods of ten conjugate models against their closed forms.

python -m lab.slt.evidence --out results/evidence.json
"""

from __future__ import annotations

import math
import time
from typing import Any

import torch
from torch import Tensor, nn

from lab.command import study
from lab.results import complete
from natural_langevin import evidence, likelihoods, priors

#: Weights (one of them the bias), rows, the prior's variance, and the deviation of the noise.
MODELS = (
    (2, 30, 1.0, 1.0), (3, 50, 1.0, 0.5), (5, 10_000, 1.0, 0.5), (8, 300, 0.1, 1.0),
    (10, 1000, 1.0, 0.5), (15, 5000, 2.0, 1.0), (20, 200, 0.5, 0.7), (30, 500, 1.0, 0.5),
    (40, 2000, 0.3, 1.0), (50, 10_000, 1.0, 0.5),
)  # fmt: skip


def data_of(inputs: int, rows: int, sigma: float) -> tuple[Tensor, Tensor]:
    """Correlated inputs, and targets from a linear model."""
    g = torch.Generator().manual_seed(inputs)
    x = torch.randn(rows, inputs, generator=g)
    x[:, 1:] += 0.5 * x[:, :-1].clone()
    truth = torch.randn(inputs, 1, generator=g) / math.sqrt(inputs)
    return x, x @ truth + sigma * torch.randn(rows, 1, generator=g)


def closed_form(x: Tensor, y: Tensor, variance: float, sigma: float) -> float:
    """ln N(y; 0, sigma^2 Id + variance A A^T), A the inputs and a column of ones."""
    a = torch.cat([x, torch.ones_like(x[:, :1])], 1).double()
    (n, d), target = a.shape, y[:, 0].double()
    precision = a.T @ a / sigma**2 + torch.eye(d).double() / variance
    mean = torch.linalg.solve(precision, a.T @ target / sigma**2)
    fit = mean @ precision @ mean / 2 - target @ target / (2 * sigma**2)
    volume = torch.logdet(precision) / 2 + d / 2 * math.log(variance)
    return float(fit - volume - n / 2 * math.log(2 * math.pi * sigma**2))


def row(weights: int, count: int, variance: float, sigma: float) -> dict[str, Any]:
    """One model: ours and the closed form."""
    x, y = data_of(weights - 1, count, sigma)
    torch.manual_seed(0)
    began = time.process_time()
    found = evidence.log_marginal_likelihood(
        nn.Linear(weights - 1, 1), likelihoods.Gaussian(sigma=sigma), (x, y),
        prior=priors.Gaussian(variance=variance),
    )  # fmt: skip
    return {
        "weights": weights, "rows": count, "variance": variance, "sigma": sigma,
        "exact": closed_form(x, y, variance, sigma), "value": found.value,
        "error": found.error, "stepping_stone": found.stepping_stone,
        "powers": len(found.powers), "swaps": min(found.swaps), "warnings": found.warnings,
        "seconds": time.process_time() - began,
    }  # fmt: skip


def main() -> None:
    """Writes a row for every model."""
    by = ("weights", "rows", "variance", "sigma")
    complete(study(__doc__).parse_args().out, {}, MODELS, row, by=by)


if __name__ == "__main__":
    main()
