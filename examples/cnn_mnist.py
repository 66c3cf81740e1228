"""A convolutional network on MNIST: accuracy, calibration, and which images it is unsure of.

Where MNIST cannot be had, scikit-learn's 8x8 digits take its place. To name a folder with the
four idx files: NATURAL_LANGEVIN_DATA=FOLDER. The picture shows the reliability diagram and the test
images with the largest epistemic uncertainty, beside those with the smallest.

    python examples/cnn_mnist.py --out runs/cnn_mnist
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path

import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from natural_langevin import (
    Langevin,
    Posterior,
    data,
    likelihoods,
    metrics,
    preconditioners,
    schedules,
)


def load(quick: bool) -> tuple[data.Dataset, int]:
    """Images as (N, side * side), and the side. The quick size uses digits, which need no file."""
    if quick:
        found = data.digits()
    else:
        try:
            found = data.mnist()
        except data.DataUnavailableError as error:
            print(f"{error}\nGoing on with scikit-learn's digits instead.")
            found = data.digits()
    print(found)
    return found, math.isqrt(found.train_x.shape[1])


def build(side: int, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Unflatten(1, (1, side, side)),
        nn.Conv2d(1, 8, 3, stride=2 if side > 8 else 1, padding=1),
        nn.ReLU(),
        nn.Conv2d(8, 16, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2, ceil_mode=True),
        nn.Flatten(),
        nn.Linear(16 * (4 if side > 8 else 2) ** 2, 10),
    )


def sample(found: data.Dataset, side: int, options: argparse.Namespace) -> Posterior:
    sampler = Langevin(
        build(side, options.seed),
        likelihoods.Categorical(),
        preconditioner=preconditioners.QuasiDiagonalFisher(damping=1e-3),
        step_size=schedules.polynomial(1e-2, offset=1000),
        chains=2,
        init="fan_in",  # every chain starts elsewhere
        seed=options.seed,
        device=options.device,
        compile=False if options.quick else "auto",
    )
    steps, thin = (48, 4) if options.quick else (4_000, 100)
    return sampler.sample(
        (found.train_x, found.train_y), steps=steps, burn_in=steps // 4, thin=thin, progress=False
    )


def linear_baseline(found: data.Dataset, steps: int) -> float:
    """Test accuracy of logistic regression, trained by Adam."""
    generator = torch.Generator().manual_seed(0)
    linear = nn.Linear(found.train_x.shape[1], 10)
    optimiser = torch.optim.Adam(linear.parameters(), lr=3e-3)
    for _ in range(steps):
        batch = torch.randint(len(found.train_x), (200,), generator=generator)
        loss = nn.functional.cross_entropy(linear(found.train_x[batch]), found.train_y[batch])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return metrics.accuracy(linear(found.test_x).softmax(1).detach(), found.test_y)


def draw(posterior: Posterior, x: Tensor, y: Tensor, side: int, file: Path) -> None:
    p = posterior.predict(x, keep_samples=False)
    mean, epistemic = p.mean.cpu(), p.epistemic.cpu()
    figure = Figure(figsize=(8.5, 3.2), layout="constrained")
    left, right = figure.subfigures(1, 2, width_ratios=(1, 1.7))
    metrics.plot_reliability(metrics.reliability(mean, y, bins=10), axes=left.add_subplot())
    order = epistemic.argsort()
    grid = right.subplots(2, 6)
    right.suptitle("least (top) and most (bottom) epistemic uncertainty", fontsize=9)
    for axes, index in zip(grid.flat, [*order[:6], *order.flip(0)[:6]], strict=True):
        best = mean[index].topk(2).indices.tolist()
        guesses = ", ".join(f"{k}: {mean[index, k]:.0%}" for k in best)
        axes.imshow(x[index].reshape(side, side).numpy(), cmap="gray_r")
        axes.set_title(f"{guesses}\nis {y[index]}, MI {epistemic[index]:.2f}", fontsize=6)
        axes.set_axis_off()
    figure.savefig(file, dpi=110)


def main(argv: list[str] | None = None) -> dict[str, object]:
    options = arguments(argv)
    found, side = load(options.quick)
    posterior = sample(found, side, options)

    # Noise in place of images: does the posterior know that these are no digits?
    static = torch.rand(500, side * side, generator=torch.Generator().manual_seed(options.seed))
    scores = posterior.evaluate(found.test_x, found.test_y, ood=static)
    baseline = linear_baseline(found, steps=200 if options.quick else 2000)
    print(
        "The ensemble on test data (out of distribution: static in place of images):",
        scores,
        sep="\n",
    )
    print(f"accuracy of logistic regression: {baseline:.2%}")
    print(posterior.diagnose(found.test_x[:50]))
    draw(posterior, found.test_x, found.test_y, side, options.out / "cnn_mnist.png")

    results = {"data": found.name, "scores": vars(scores), "logistic regression": baseline}
    results["settings"] = posterior.config
    (options.out / "cnn_mnist.json").write_text(json.dumps(results, indent=1))
    return results


def arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("runs/cnn_mnist"))
    parser.add_argument("--quick", action="store_true", help="a few seconds; not converged")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(argv)
    options.out.mkdir(parents=True, exist_ok=True)
    return options


if __name__ == "__main__":
    main()
