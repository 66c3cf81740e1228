"""What learning coefficients cost on a GPU: an MNIST perceptron, and the checkpoints of a training.

    python -m lab.slt.gpu --out results/slt-gpu.json --device cuda

Of the perceptron 784-400-400-10, 6 chains of 5,000 steps on minibatches of 512; of a residual
network, ``--checkpoints`` of one short training on random images, as chains of one run. With
``devinterp`` (``lab.slt.peers`` says how) its time for the same perceptron is beside it.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from natural_langevin import data, likelihoods, models, slt
from natural_langevin.experiments.origin import origin

LIKELIHOOD = likelihoods.Categorical()


def trained(net: nn.Module, x: Tensor, y: Tensor, steps: int, keep: int = 1) -> list[Any]:
    """``keep`` state dicts along a training by Adam; the network is where it ends."""
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    kept, g = [], torch.Generator().manual_seed(0)
    for step in range(steps):
        rows = torch.randint(0, len(x), (128,), generator=g).to(x.device)
        optimizer.zero_grad()
        cross_entropy(net(x[rows]), y[rows]).backward()
        optimizer.step()
        if (step + 1) % max(1, steps // keep) == 0:
            kept.append({k: v.detach().clone() for k, v in net.state_dict().items()})
    return kept[:keep]


def timed(device: str, run: Any) -> tuple[Any, float]:
    """What ``run`` returns, and its seconds with the device at rest."""
    began = time.perf_counter()
    found = run()
    if device.startswith("cuda"):
        torch.cuda.synchronize()
    return found, time.perf_counter() - began


def perceptron(given: argparse.Namespace) -> dict[str, Any]:
    """The published case: 6 chains of 5,000 steps."""
    mnist = data.mnist()
    x, y = mnist.train_x.flatten(1).to(given.device), mnist.train_y.to(given.device)
    torch.manual_seed(0)
    net = models.mlp(784, 10, (400, 400)).to(given.device)
    trained(net, x, y, given.training)
    options: dict[str, Any] = {
        "chains": 6, "steps": given.steps, "batch_size": 512, "draws": 16, "device": given.device,
    }  # fmt: skip
    slt.llc(net, LIKELIHOOD, (x, y), **options | {"steps": 60})  # what is built once
    found, seconds = timed(given.device, lambda: slt.llc(net, LIKELIHOOD, (x, y), **options))
    rows = {"ours": {"value": found.value, "error": found.error, "seconds": seconds,
                     "execution": found.posterior.config["execution"],
                     "warnings": found.warnings}}  # fmt: skip
    if importlib.util.find_spec("devinterp") is not None:
        rows["devinterp"] = theirs(net, x, y, given)
    return rows


def theirs(net: nn.Module, x: Tensor, y: Tensor, given: argparse.Namespace) -> dict[str, Any]:
    """Its SGLD with as many chains and steps."""
    from devinterp.optim import SGLD
    from devinterp.slt.sampler import estimate_learning_coeff_with_summary

    loader = DataLoader(TensorDataset(x.cpu(), y.cpu()), batch_size=512, shuffle=True)
    with torch.no_grad():
        start = float(cross_entropy(net(x), y))
    options = {"lr": 1e-5, "localization": 100.0, "nbeta": len(x) / math.log(len(x))}
    found, seconds = timed(given.device, lambda: estimate_learning_coeff_with_summary(
        net, loader, evaluate=lambda m, b: (cross_entropy(m(b[0]), b[1]), {}), init_loss=start,
        sampling_method=SGLD, optimizer_kwargs=options, num_chains=6, num_draws=given.steps // 2,
        num_burnin_steps=given.steps // 2, device=given.device, seed=0, verbose=False,
    ))  # fmt: skip
    return {"value": float(found["llc/mean"]), "seconds": seconds, **options}


def checkpoints(given: argparse.Namespace) -> dict[str, Any]:
    """A training's coefficients in one call."""
    g = torch.Generator().manual_seed(0)
    x = torch.randn(2048, 3, 32, 32, generator=g).to(given.device)
    y = torch.randint(0, 10, (2048,), generator=g).to(given.device)
    torch.manual_seed(0)
    width = given.width
    net = nn.Sequential(
        nn.Conv2d(3, width, 3, padding=1), nn.GroupNorm(4, width), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(width, 2 * width, 3, padding=1), nn.GroupNorm(4, 2 * width), nn.ReLU(),
        nn.MaxPool2d(2), nn.Conv2d(2 * width, 4 * width, 3, padding=1),
        nn.GroupNorm(4, 4 * width), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(4 * width, 10),
    ).to(given.device)  # fmt: skip
    kept = trained(net, x, y, max(given.training, given.checkpoints), given.checkpoints)
    found, seconds = timed(given.device, lambda: slt.llc_curve(
        kept, net, LIKELIHOOD, (x, y), chains=1, steps=given.curve_steps, batch_size=256, draws=8,
        device=given.device, baseline="minimum",
    ))  # fmt: skip
    return {
        "checkpoints": len(kept), "weights": sum(p.numel() for p in net.parameters()),
        "seconds": seconds, "value": found.value.tolist(), "error": found.error.tolist(),
    }  # fmt: skip


def main() -> None:
    """Writes both, and prints them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--steps", type=int, default=5000)
    parser.add_argument("--training", type=int, default=2000)
    parser.add_argument("--checkpoints", type=int, default=100)
    parser.add_argument("--curve-steps", type=int, default=500)
    parser.add_argument("--width", type=int, default=64)
    given = parser.parse_args()
    results: dict[str, Any] = {"origin": origin(given.device)}
    results["checkpoints"] = checkpoints(given)
    print(json.dumps(results["checkpoints"]), flush=True)
    results["perceptron"] = perceptron(given)
    print(json.dumps(results["perceptron"]), flush=True)
    given.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
