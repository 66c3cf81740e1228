"""The right hidden width by the marginal likelihood, beside laplace-torch's on the same data.

    OMP_NUM_THREADS=1 python -m lab.slt.width --out results/slt-width.json --count 50 --jobs 14

A data set is drawn from a tanh network of two inputs and one to three hidden units, none of which
is idle; models are the same network with one to four units under N(0, 9) for every weight, wide
enough for an idle unit to cost several nats. Ours is
``evidence.log_marginal_likelihood`` by defaults; laplace-torch's (where it is installed) is the
best of ``STARTS`` maxima of the posterior found by Adam, with the generalised Gauss-Newton matrix
of all weights.
"""

from __future__ import annotations

import importlib.util
import math
import time
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn

from lab.command import at_least, study
from lab.results import complete
from natural_langevin import evidence, likelihoods, priors

ROWS, SIGMA, VARIANCE, WIDTHS, TRUE, STARTS = 150, 0.1, 9.0, (1, 2, 3, 4), (1, 2, 3), 3


def network(width: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(2, width), nn.Tanh(), nn.Linear(width, 1))


def data_of(seed: int) -> tuple[int, Tensor, Tensor]:
    """The true width, inputs and targets. Units look into directions a third of a turn apart."""
    g = torch.Generator().manual_seed(seed)
    width = TRUE[seed % len(TRUE)]
    x = 2 * torch.randn(ROWS, 2, generator=g)
    turn = math.pi * (torch.rand(1, generator=g) + torch.arange(width) / width)
    w = (1 + torch.rand(width, generator=g)) * torch.stack([turn.cos(), turn.sin()])
    b = torch.randn(width, generator=g)
    sign = torch.randint(0, 2, (width, 1), generator=g) * 2 - 1
    v = sign * (0.7 + 0.8 * torch.rand(width, 1, generator=g))
    return width, x, torch.tanh(x @ w + b) @ v + SIGMA * torch.randn(ROWS, 1, generator=g)


def ours(width: int, x: Tensor, y: Tensor, seed: int) -> dict[str, Any]:
    torch.manual_seed(seed)
    began = time.process_time()
    found = evidence.log_marginal_likelihood(
        network(width), likelihoods.Gaussian(sigma=SIGMA), (x, y),
        prior=priors.Gaussian(variance=VARIANCE),
    )  # fmt: skip
    return {
        "value": found.value, "error": found.error, "stepping_stone": found.stepping_stone,
        "warnings": found.warnings, "seconds": time.process_time() - began,
    }  # fmt: skip


def maximum(width: int, x: Tensor, y: Tensor, seed: int) -> nn.Sequential:
    """A maximum of the posterior."""
    torch.manual_seed(seed)
    net = network(width)
    optimizer = torch.optim.Adam(net.parameters(), 0.03)
    fall = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 1500)
    for _ in range(1500):
        optimizer.zero_grad()
        misfit = (net(x) - y).square().sum() / (2 * SIGMA**2)
        (misfit + sum(p.square().sum() for p in net.parameters()) / (2 * VARIANCE)).backward()
        optimizer.step()
        fall.step()
    return net


def theirs(width: int, x: Tensor, y: Tensor, seed: int) -> dict[str, Any]:
    """The best of several maxima by laplace-torch."""
    from laplace import Laplace
    from torch.utils.data import DataLoader, TensorDataset

    began, values = time.process_time(), []
    for start in range(STARTS):
        net = maximum(width, x, y, STARTS * seed + start)
        found: Any = Laplace(
            net, "regression", subset_of_weights="all", hessian_structure="full",
            sigma_noise=SIGMA, prior_precision=1 / VARIANCE,
        )  # fmt: skip
        found.fit(DataLoader(TensorDataset(x, y), batch_size=ROWS))
        values.append(float(found.log_marginal_likelihood()))
    return {"value": max(values), "values": values, "seconds": time.process_time() - began}


def row(seed: int) -> dict[str, Any]:
    """One data set by both."""
    width, x, y = data_of(seed)
    found: dict[str, Any] = {"seed": seed, "width": width}
    found["ours"] = {str(h): ours(h, x, y, seed) for h in WIDTHS}
    if importlib.util.find_spec("laplace") is not None:
        found["laplace"] = {str(h): theirs(h, x, y, seed) for h in WIDTHS}
    return found


def chosen(by_width: dict[str, Any]) -> int:
    """The width of the largest value."""
    return int(max(by_width, key=lambda h: by_width[h]["value"]))


def summary(rows: list[dict[str, Any]]) -> dict[str, float]:
    """The share of data sets whose width was found, by method, and seconds of a data set."""
    found: dict[str, float] = {"data_sets": len(rows)}
    for name in ("ours", "laplace"):
        same = [r for r in rows if name in r]
        if same:
            found[name] = sum(chosen(r[name]) == r["width"] for r in same) / len(same)
            total = sum(v["seconds"] for r in same for v in r[name].values())
            found[f"{name}_seconds"] = total / len(same)
    return found


def main() -> None:
    """Runs the data sets that the file does not have yet."""
    parser = study(__doc__, jobs="data sets")
    parser.add_argument("--count", type=at_least(1), default=50)
    given = parser.parse_args()
    settings = {
        "rows": ROWS, "sigma": SIGMA, "variance": VARIANCE, "widths": WIDTHS, "true": TRUE,
        "starts": STARTS,
    }  # fmt: skip
    complete(
        given.out, settings, product(range(given.count)), row, by=("seed",), jobs=given.jobs,
        summary=summary,
    )  # fmt: skip


if __name__ == "__main__":
    main()
