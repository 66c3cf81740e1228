"""What several processes do together, against the same run in each of them alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from natural_langevin import Langevin, likelihoods, preconditioners
from natural_langevin.distributed import Group, Layout

DOUBLE = torch.float64


def network(kind: str = "dense") -> nn.Module:
    """Of float64: 3 inputs and 3 outputs, or a small convolution over 1 x 4 x 4."""
    generator = torch.Generator().manual_seed(0)
    if kind == "dense":
        net = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 3))
    else:
        net = nn.Sequential(nn.Conv2d(1, 3, 3), nn.Tanh(), nn.Flatten(), nn.Linear(12, 3))
    with torch.no_grad():
        for p in net.parameters():
            p.copy_(torch.randn(p.shape, generator=generator) / 2)
    return net.double()


def classes(kind: str = "dense", count: int = 40) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    shape = (count, 3) if kind == "dense" else (count, 1, 4, 4)
    x = torch.randn(shape, generator=generator, dtype=DOUBLE)
    return x, x.flatten(1)[:, :3].argmax(1)


def largest_difference(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    return max(float((one[k] - other[k]).abs().max()) for k in one)


def run(parallel: Any, data: Any, *, steps: int, kind: str = "dense", **settings: Any) -> Any:
    """``settings`` of the sampler, and of the run where they are called so."""
    of_run = {k: settings.pop(k) for k in ("batch_size", "burn_in", "thin", "store", "checkpoint")
              if k in settings}  # fmt: skip
    options = {"likelihood": likelihoods.Categorical(), "step_size": 2e-3, "chains": 1, "seed": 3}
    sampler = Langevin(settings.pop("model", None) or network(kind), **(options | settings),
                       parallel=parallel)  # fmt: skip
    return sampler.sample(data, steps, progress=False, **({"batch_size": 10} | of_run))


METRICS = {
    "euclidean": preconditioners.Euclidean(),
    "rmsprop": preconditioners.RMSProp(),
    "diagonal": preconditioners.DiagonalFisher(),
    "diagonal, drawn labels": preconditioners.DiagonalFisher(targets="model"),
    "quasi-diagonal": preconditioners.QuasiDiagonalFisher(),
    "quasi-diagonal, drawn labels": preconditioners.QuasiDiagonalFisher(targets="model"),
    "full": preconditioners.FullFisher(damping=1e-2),
    "full, drawn labels": preconditioners.FullFisher(targets="model"),
}


def check_every_metric(group: Group, folder: Path) -> dict[str, float]:
    """Batches of 7 on a few processes are never even. Hundreds of steps, in float64."""
    found = {}
    layout = Layout(data=group.world)
    for name, metric in METRICS.items():
        options = {"preconditioner": metric, "steps": 200, "thin": 50, "batch_size": 7}
        alone, shared = (run(where, classes(), **options) for where in (None, layout))
        found[name] = largest_difference(shared.last, alone.last)
        found[name] = max(found[name], largest_difference(shared.mean, alone.mean))
        assert torch.isfinite(shared.trace).all()
    return found
