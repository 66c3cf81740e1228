"""What learning coefficients cost on a GPU: an MNIST perceptron, and the checkpoints of a training.

    python -m lab.slt.gpu --out results/slt-gpu.json --device cuda --budget 180

Rows, each in a process of its own that ends after ``--limit`` seconds, or with the budget; what it
has logged, with seconds, is on stderr when it ends:

    perceptron             784-400-400-10, 6 chains of 5,000 steps on minibatches of 512: 2,500, and
                           2,500 of the second run, which measures what minibatches add
    perceptron, all data   the same with all data in every step: a reference
    perceptron, devinterp  its SGLD on the same network, one of six chains of as many steps
    checkpoints            of one short training of a convolutional network on MNIST, as chains of
                           one run: the first call of a process; Triton's kernels are compiled
                           in it if this machine has not run it before
    checkpoints, RMSProp   the same in another metric
    checkpoints, longer    every tenth of them, with twenty times the steps: what all should have
    checkpoints, devinterp its SGLD at three of them, each with its documented 10 chains of 100
                           draws; ``seconds``: times the number of checkpoints over three

``lab.slt.peers`` says which devinterp; it gets its minibatches at once, as tensors of the device.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

from lab.command import add_device, study
from lab.gpu import synchronise
from lab.jobs import answer, started
from lab.results import attempted, write_results
from lab.slt.peers import Batches
from natural_langevin import data, likelihoods, models, preconditioners, slt
from natural_langevin.cli.experiments.origin import origin

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
    synchronise(device)
    return found, time.perf_counter() - began


def mnist_network(given: argparse.Namespace) -> tuple[nn.Module, Tensor, Tensor]:
    """Trained, with its data."""
    mnist = data.mnist(download=False)
    x = mnist.train_x.flatten(1)[: given.rows].to(given.device)
    y = mnist.train_y[: given.rows].to(given.device)
    torch.manual_seed(0)
    net = models.mlp(784, 10, (400, 400)).to(given.device)
    trained(net, x, y, given.training)
    return net, x, y


def perceptron(given: argparse.Namespace) -> dict[str, Any]:
    """The published case: 6 chains of 5,000 steps."""
    net, x, y = mnist_network(given)
    options: dict[str, Any] = {
        "chains": 6, "steps": given.steps // 2, "batch_size": min(512, len(x)), "draws": 12,
        "device": given.device,
    }  # fmt: skip
    _, built = timed(
        given.device, lambda: slt.llc(net, LIKELIHOOD, (x, y), **options | {"steps": 60})
    )
    found, seconds = timed(given.device, lambda: slt.llc(net, LIKELIHOOD, (x, y), **options))
    return described(found) | {"seconds": seconds, "built_once": built, "steps": given.steps}


def perceptron_exact(given: argparse.Namespace) -> dict[str, Any]:
    """With all data in every step."""
    net, x, y = mnist_network(given)
    found, seconds = timed(given.device, lambda: slt.llc(
        net, LIKELIHOOD, (x, y), chains=6, steps=given.steps // 10, batch_size=len(x), draws=16,
        device=given.device,
    ))  # fmt: skip
    return described(found) | {"seconds": seconds, "steps": given.steps // 10}


def described(found: slt.LearningCoefficient) -> dict[str, Any]:
    return {
        "value": found.value, "error": found.error, "minibatches": found.minibatch_bias,
        "rhat": found.rhat, "execution": found.posterior.config["execution"],
        "warnings": found.warnings,
    }  # fmt: skip


def perceptron_theirs(given: argparse.Namespace) -> dict[str, Any]:
    net, x, y = mnist_network(given)
    found = theirs(net, x, y, given.device, chains=1, burn_in=given.theirs // 2,
                   draws=given.theirs - given.theirs // 2, batch=512)  # fmt: skip
    return found | {"seconds": found["per_step"] * 6 * given.steps, "chains": 6}


def theirs(
    net: nn.Module, x: Tensor, y: Tensor, device: str, *,
    chains: int, burn_in: int, draws: int, batch: int,
) -> dict[str, Any]:  # fmt: skip
    """Its SGLD, data on the device."""
    from devinterp.optim import SGLD
    from devinterp.slt.sampler import estimate_learning_coeff_with_summary

    loader = Batches(TensorDataset(x, y), batch_size=min(batch, len(x)), shuffle=True)
    with torch.no_grad():
        parts = zip(x.split(2000), y.split(2000), strict=True)
        start = sum(float(cross_entropy(net(a), b, reduction="sum")) for a, b in parts) / len(x)
    options = {"lr": 1e-5, "localization": 100.0, "nbeta": len(x) / math.log(len(x))}
    found, seconds = timed(device, lambda: estimate_learning_coeff_with_summary(
        net, loader, evaluate=lambda m, b: (cross_entropy(m(b[0]), b[1]), {}), init_loss=start,
        sampling_method=SGLD, optimizer_kwargs=options, num_chains=chains, num_draws=draws,
        num_burnin_steps=burn_in, device=device, seed=0, verbose=False,
    ))  # fmt: skip
    steps = chains * (draws + burn_in)
    return {
        "value": float(found["llc/mean"]), "measured_seconds": seconds, "measured_steps": steps,
        "per_step": seconds / steps, **{k: options[k] for k in ("lr", "localization", "nbeta")},
    }  # fmt: skip


def training_run(given: argparse.Namespace) -> tuple[nn.Module, list[Any], Tensor, Tensor]:
    """A convolutional network, its checkpoints, and images in three colours of 32 x 32 pixels."""
    mnist = data.mnist(download=False)
    some = slice(min(2048, given.rows or 2048))
    x = nn.functional.pad(mnist.train_x[some].view(-1, 1, 28, 28), (2, 2, 2, 2))
    x, y = x.repeat(1, 3, 1, 1).to(given.device), mnist.train_y[some].to(given.device)
    torch.manual_seed(0)
    width = given.width
    net = nn.Sequential(
        nn.Conv2d(3, width, 3, padding=1), nn.GroupNorm(4, width), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(width, 2 * width, 3, padding=1), nn.GroupNorm(4, 2 * width), nn.ReLU(),
        nn.MaxPool2d(2), nn.Conv2d(2 * width, 4 * width, 3, padding=1),
        nn.GroupNorm(4, 4 * width), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(4 * width, 10),
    ).to(given.device)  # fmt: skip
    kept = trained(net, x, y, max(given.training // 4, given.checkpoints), given.checkpoints)
    return net, kept, x, y


def checkpoints(
    given: argparse.Namespace,
    *,
    metric: preconditioners.Preconditioner | None = None,
    apart: int = 1,
    times: int = 1,
) -> dict[str, Any]:
    """A training's coefficients in one call, of checkpoints so far ``apart``."""
    net, kept, x, y = training_run(given)
    kept, steps = kept[apart - 1 :: apart], times * given.curve_steps

    def curve(of: list[Any], steps: int) -> slt.Curve:
        return slt.llc_curve(
            of, net, LIKELIHOOD, (x, y), chains=1, steps=steps, batch_size=min(128, len(x)),
            draws=8 if times == 1 else 64, device=given.device, preconditioner=metric,
        )  # fmt: skip

    found, seconds = timed(given.device, lambda: curve(kept, steps))
    one = found.estimates[0].posterior
    config = one.config
    return {
        "checkpoints": len(kept), "steps": config["steps"], "seconds": seconds,
        "weights": sum(p.numel() for p in net.parameters()), "execution": config["execution"],
        "step_size": one.plan.step_size, "value": found.value.tolist(),
        "error": found.error.tolist(), "loss": found.loss.tolist(),
        "minibatches": [e.minibatch_bias for e in found.estimates],
    }  # fmt: skip


def checkpoints_theirs(given: argparse.Namespace) -> dict[str, Any]:
    net, kept, x, y = training_run(given)
    rows = []
    for place in (0, len(kept) // 2, len(kept) - 1):
        net.load_state_dict(kept[place])
        found = theirs(net, x, y, given.device, chains=10, burn_in=0,
                       draws=min(100, given.theirs), batch=128)  # fmt: skip
        rows.append({"checkpoint": place} | found)
    measured = sum(r["measured_seconds"] for r in rows)
    return {
        "seconds": measured * len(kept) / len(rows), "measured_seconds": measured,
        "measured": rows, "checkpoints": len(kept),
    }  # fmt: skip


ROWS: dict[str, Callable[[argparse.Namespace], dict[str, Any]]] = {
    "perceptron": perceptron,
    "perceptron, devinterp": perceptron_theirs,
    "checkpoints, devinterp": checkpoints_theirs,
    "checkpoints": checkpoints,
    "checkpoints, RMSProp": partial(checkpoints, metric=preconditioners.RMSProp()),
    "checkpoints, longer": partial(checkpoints, apart=10, times=20),
    "perceptron, all data": perceptron_exact,
}


def main() -> None:
    """Writes every row, and prints it."""
    parser = study(__doc__)
    add_device(parser)
    parser.add_argument("--steps", type=int, default=5000)
    parser.add_argument("--training", type=int, default=2000)
    parser.add_argument("--checkpoints", type=int, default=100)
    parser.add_argument("--curve-steps", type=int, default=100)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--theirs", type=int, default=5000, help="steps of devinterp's chain")
    parser.add_argument("--rows", type=int, help="of data, at most")
    parser.add_argument("--limit", type=float, default=120.0, help="seconds of a row")
    parser.add_argument("--budget", type=float, default=math.inf, help="seconds of all rows")
    parser.add_argument("--only", nargs="+", choices=list(ROWS), default=list(ROWS))
    parser.add_argument("--row", choices=list(ROWS), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.row:
        shown = "%(relativeCreated)9.0f ms  " + given.row + ": %(message)s"
        logging.basicConfig(level=logging.WARNING, format=shown)
        logging.getLogger("natural_langevin").setLevel(logging.INFO)
        print(json.dumps(ROWS[given.row](given)), flush=True)
        return
    results: dict[str, Any] = {"origin": origin(given.device), "rows": {}}
    if given.out.exists():
        results["rows"] = json.loads(given.out.read_text())["rows"]
    ends = time.monotonic() + given.budget
    for name in given.only:
        left = ends - time.monotonic()
        if left <= 0:
            break
        process = started("lab.slt.gpu", [*sys.argv[1:], "--row", name])
        results["rows"][name] = attempted(answer, process, min(given.limit, left))
        print(json.dumps({name: results["rows"][name]}), flush=True)
        write_results(given.out, results)


if __name__ == "__main__":
    main()
