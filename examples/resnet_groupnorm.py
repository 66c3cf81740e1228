"""A small residual network with GroupNorm on scikit-learn's digits, and when not to answer.

BatchNorm couples the samples of a batch, so that a network with it has no likelihood of single
samples; GroupNorm does not. The picture shows the reliability diagram, and the error rate among the
test images of which the posterior is surest, for every fraction of them.

    python examples/resnet_groupnorm.py --out runs/resnet_groupnorm
"""

from __future__ import annotations

import argparse
import json
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
    priors,
    schedules,
)


class Block(nn.Module):
    """x + conv(relu(norm(conv(relu(norm(x))))))"""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first_norm, self.second_norm = (nn.GroupNorm(4, channels) for _ in range(2))
        self.first, self.second = (nn.Conv2d(channels, channels, 3, padding=1) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(self.first_norm(x).relu())
        return x + self.second(self.second_norm(h).relu())


def build(channels: int, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)),
        nn.Conv2d(1, channels, 3, padding=1),
        Block(channels),
        nn.AvgPool2d(2),
        Block(channels),
        nn.GroupNorm(4, channels),
        nn.ReLU(),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(4 * channels, 10),
    )


def sample(found: data.Dataset, options: argparse.Namespace) -> Posterior:
    # The gains of a norm layer belong around 1, not around 0: a prior of their own. They are the
    # only one-dimensional weights; here, "5." is the last norm layer.
    gains = priors.Gaussian(mean=1.0, variance=0.1)
    sampler = Langevin(
        build(8 if options.quick else 16, options.seed),
        likelihoods.Categorical(),
        prior={"*norm.weight": gains, "5.weight": gains, "*": priors.Gaussian(variance=1.0)},
        preconditioner=preconditioners.QuasiDiagonalFisher(damping=1e-3),
        step_size=schedules.polynomial(3e-3, offset=1000),
        chains=2,
        init="fan_in",  # every chain starts elsewhere
        seed=options.seed,
        device=options.device,
        compile=False if options.quick else "auto",
    )
    steps, thin = (32, 2) if options.quick else (1_200, 30)
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


def draw(posterior: Posterior, x: Tensor, y: Tensor, file: Path) -> None:
    figure = Figure(figsize=(7.5, 3.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    for estimate, name in (("ensemble", "all networks"), ("mean", "mean weights")):
        p = posterior.predict(x, estimate=estimate, keep_samples=False).mean.cpu()
        metrics.plot_reliability(metrics.reliability(p, y, bins=8), label=name, axes=left)
        confidence, predicted = p.max(1)
        curve = metrics.risk_coverage(-confidence, predicted != y)
        right.plot(curve.coverage, curve.risk, label=name)
    right.set(xlabel="fraction of images answered", ylabel="error rate among them")
    right.legend()
    figure.savefig(file, dpi=110)


def main(argv: list[str] | None = None) -> dict[str, object]:
    options = arguments(argv)
    found = data.digits()
    posterior = sample(found, options)

    # Noise in place of images: does the posterior know that these are no digits?
    static = torch.rand(500, 64, generator=torch.Generator().manual_seed(options.seed))
    scores = posterior.evaluate(found.test_x, found.test_y, ood=static)
    baseline = linear_baseline(found, steps=200 if options.quick else 2000)
    print(
        "The ensemble on test data (out of distribution: static in place of images):",
        scores,
        sep="\n",
    )
    print(f"accuracy of logistic regression: {baseline:.2%}")
    print(posterior.diagnose(found.test_x[:50]))
    draw(posterior, found.test_x, found.test_y, options.out / "resnet_groupnorm.png")

    results = {"data": found.name, "scores": vars(scores), "logistic regression": baseline}
    results["settings"] = posterior.config
    (options.out / "resnet_groupnorm.json").write_text(json.dumps(results, indent=1))
    return results


def arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("runs/resnet_groupnorm"))
    parser.add_argument("--quick", action="store_true", help="a few seconds; not converged")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(argv)
    options.out.mkdir(parents=True, exist_ok=True)
    return options


if __name__ == "__main__":
    main()
