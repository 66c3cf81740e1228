"""The picture of the README: a regression band, and how often a classifier answers and is right.

    python -m lab.pictures [--out docs/assets/first.png]

Both panels are runs with the defaults: a wave with a gap in its data, and scikit-learn's digits.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes
from torch import Tensor, nn

from natural_langevin import Langevin, data, likelihoods

ROOT = Path(__file__).resolve().parent.parent
BLUE, PINK, GREY = "#3f51b5", "#d81b60", "#555555"


def wave(count: int = 80) -> tuple[Tensor, Tensor]:
    """Noisy points of a wave, none between -0.5 and 0.7."""
    generator = torch.Generator().manual_seed(1)
    x = torch.rand(count, 1, generator=generator) * 2.2
    x = torch.where(x < 1.1, x - 1.6, x - 0.4)
    noise = 0.15 * torch.randn(count, 1, generator=generator)
    return x, torch.sin(3 * x) + noise


def band(axes: Axes) -> None:
    """The mean and the 90 % interval of a regression, with the points that it learned from."""
    x, y = wave()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(1, 50), nn.Tanh(), nn.Linear(50, 1))
    posterior = Langevin(model, likelihoods.Gaussian(sigma=0.15)).sample((x, y), progress=False)
    grid = torch.linspace(-2.4, 2.4, 200)[:, None]
    p = posterior.predict(grid, quantiles=(0.05, 0.95))
    assert p.quantiles is not None
    low, high = p.quantiles[0, :, 0], p.quantiles[1, :, 0]
    axes.fill_between(grid[:, 0], low, high, color=BLUE, alpha=0.2, lw=0, label="90 % interval")
    axes.plot(grid[:, 0], p.mean[:, 0], color=BLUE, label="mean prediction")
    axes.plot(x[:, 0], y[:, 0], ".", color=GREY, ms=4, label="data")
    axes.set(title="Regression: wide where there are no data", xlabel="input", ylabel="output",
             ylim=(-3, 3.4))  # fmt: skip
    axes.legend(frameon=False, fontsize=8, loc="upper left", ncols=3)


def how_sure(axes: Axes) -> None:
    """Of held-out digits: how many are answered, and how many of these rightly."""
    digits = data.digits()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 50), nn.ReLU(), nn.Linear(50, 10))
    posterior = Langevin(model, likelihoods.Categorical()).sample(
        (digits.train_x, digits.train_y), progress=False
    )
    sure, answer = posterior.predict(digits.test_x).mean.max(1)
    right = (answer == digits.test_y).double()
    levels = torch.linspace(0.3, 0.99, 70)
    kept = [sure >= level for level in levels]
    axes.plot(levels * 100, [100 * k.double().mean() for k in kept], color=BLUE, label="answered")
    axes.plot(levels * 100, [100 * right[k].mean() for k in kept], color=PINK, label="right")
    axes.set(title="Classification: answers only when sure", ylabel="% of held-out digits",
             xlabel="must be at least … % sure", ylim=(55, 101.5))  # fmt: skip
    axes.legend(frameon=False, fontsize=8, loc="lower left")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=ROOT / "docs/assets/first.png")
    path: Path = parser.parse_args().out
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.3), layout="constrained")
    for axes, draw in ((left, band), (right, how_sure)):
        draw(axes)
        axes.title.set_fontsize(10)
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=130, metadata={"Software": None})
    print(path)


if __name__ == "__main__":
    main()
