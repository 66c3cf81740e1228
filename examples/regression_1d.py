"""Regression in one dimension: how sure is a network where it has seen no data?

Noisy measurements of a curve in two stretches, nothing between them and nothing outside. The
picture shows the mean of the posterior and two bands: the spread of the networks (epistemic,
which grows away from the data) and that of a new measurement (the noise added to it).

    python examples/regression_1d.py --out runs/regression_1d
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from natural_langevin import Langevin, Posterior, likelihoods, preconditioners, priors

NOISE = 0.1
SEEN = ((-1.0, -0.35), (0.25, 1.0))  # where there are data


def curve(x: Tensor) -> Tensor:
    return torch.sin(4 * x) + 0.5 * x


def measurements(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """x, y of shape (count, 1): half of them in each stretch."""
    generator = torch.Generator().manual_seed(seed)
    halves = [
        low + (high - low) * torch.rand(count // 2, 1, generator=generator) for low, high in SEEN
    ]
    x = torch.cat(halves)
    return x, curve(x) + NOISE * torch.randn(len(x), 1, generator=generator)


def build(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(1, 50), nn.Tanh(), nn.Linear(50, 50), nn.Tanh(), nn.Linear(50, 1)
    )


def sample(data: tuple[Tensor, Tensor], options: argparse.Namespace) -> Posterior:
    # A prior over functions: steep enough first-layer weights to bend within the picture, and
    # 3/fan_in behind them, so that the outputs are of the order of 1. With so few data the damping
    # must be large: a bias moves along with its 50 weights, so what has to stay below 1 is
    # 50 * step_size / (damping * N * variance), here 50 * 0.002 / (0.1 * 100 * 0.06) = 0.17.
    sampler = Langevin(
        build(options.seed),
        likelihoods.Gaussian(sigma=NOISE),
        prior={"0.*": priors.Gaussian(variance=16.0), "*": priors.Gaussian(variance=0.06)},
        preconditioner=preconditioners.QuasiDiagonalFisher(damping=0.1),
        step_size=2e-3,
        chains=4,
        init="prior",
        seed=options.seed,
        device=options.device,
        compile=False if options.quick else "auto",
    )
    steps, thin = (80, 4) if options.quick else (20_000, 100)
    return sampler.sample(
        data, steps=steps, batch_size=len(data[0]), burn_in=steps // 4, thin=thin, progress=False
    )


def draw(posterior: Posterior, data: tuple[Tensor, Tensor], file: Path) -> dict[str, float]:
    """The picture; returns the epistemic standard deviation on and off the data."""
    x = torch.linspace(-2.2, 2.2, 221).unsqueeze(1)
    p = posterior.predict(x)
    grid, mean = x[:, 0], p.mean[:, 0].cpu()
    epistemic, total = p.epistemic[:, 0].sqrt().cpu(), p.total[:, 0].sqrt().cpu()

    figure = Figure(figsize=(7, 3.6), layout="constrained")
    axes = figure.add_subplot()
    axes.fill_between(
        grid, mean - 2 * total, mean + 2 * total, color="C0", alpha=0.15, lw=0,
        label="a new measurement, ± 2 sd",
    )  # fmt: skip
    axes.fill_between(
        grid, mean - 2 * epistemic, mean + 2 * epistemic, color="C0", alpha=0.3, lw=0,
        label="the curve, ± 2 sd (epistemic)",
    )  # fmt: skip
    axes.plot(grid, p.samples[::60, :, 0].T.cpu(), color="C0", lw=0.4, alpha=0.6)
    axes.plot(grid, mean, color="C0", label="posterior mean")
    axes.plot(grid, curve(grid), color="k", lw=1, ls="--", label="the truth")
    axes.plot(*(t[:, 0] for t in data), ".", color="C3", ms=4, label="data")
    axes.set(xlabel="x", ylabel="y", xlim=(-2.2, 2.2), ylim=(-4, 4))
    axes.legend(fontsize=7, loc="upper left")
    figure.savefig(file, dpi=110)

    on_data = ((grid > -1) & (grid < -0.35)) | ((grid > 0.25) & (grid < 1))
    gap, outside = (grid > -0.25) & (grid < 0.15), grid.abs() > 2
    places = {"on the data": on_data, "in the gap": gap, "beyond |x| = 2": outside}
    return {name: float(epistemic[where].mean()) for name, where in places.items()}


def main(argv: list[str] | None = None) -> dict[str, object]:
    options = arguments(argv)
    data = measurements(100, seed=options.seed)
    posterior = sample(data, options)

    test_x, test_y = measurements(1000, seed=options.seed + 1)
    scores = posterior.evaluate(test_x, test_y)
    print("New measurements in the stretches that were seen:", scores, sep="\n")
    spread = draw(posterior, data, options.out / "regression_1d.png")
    for place, value in spread.items():
        print(f"epistemic standard deviation {place:<15} {value:.3f}  (the noise is {NOISE})")
    diagnosis = posterior.diagnose(test_x[::40], data=data)
    print(diagnosis)

    results = {"scores": vars(scores), "epistemic standard deviation": spread}
    results["settings"] = posterior.config
    (options.out / "regression_1d.json").write_text(json.dumps(results, indent=1))
    return results


def arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("runs/regression_1d"))
    parser.add_argument("--quick", action="store_true", help="a few seconds; not converged")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(argv)
    options.out.mkdir(parents=True, exist_ok=True)
    return options


if __name__ == "__main__":
    main()
