"""Counts: a Poisson model through ``LogLoss``, and whether its predicted counts can be trusted.

How many calls arrive in an hour, by the time of day and the day of the week? The data are made up
(so that the truth is known): a smooth rate with two peaks on working days and one on weekends. The
network predicts the logarithm of the rate. The picture shows rates with their uncertainty, and a
histogram of where the new counts fall within their predictive distributions: flat is calibrated.

    python examples/poisson_counts.py --out runs/poisson_counts
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path

import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from natural_langevin import Langevin, Posterior, likelihoods, preconditioners, priors, random

LARGEST = 80  # counts at which predictive distributions are cut off, far above all rates here


def true_rate(hour: Tensor, weekend: Tensor) -> Tensor:
    def peak(at: float, width: float) -> Tensor:
        return torch.exp(-(((hour - at) / width) ** 2))

    working = 1 + 14 * peak(9.5, 2.0) + 9 * peak(16.0, 2.5)
    return torch.where(weekend > 0, 1 + 6 * peak(13.0, 4.0), working)


def calls(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """x (count, 2): the hour, scaled to [-1, 1], and whether it is weekend; y (count, 1) counts."""
    generator = torch.Generator().manual_seed(seed)
    hour = 24 * torch.rand(count, generator=generator)
    weekend = (torch.rand(count, generator=generator) < 2 / 7).float()
    y = torch.poisson(true_rate(hour, weekend), generator=generator)
    return torch.stack([hour / 12 - 1, weekend], dim=1), y.unsqueeze(1)


def poisson_loss(log_rate: Tensor, y: Tensor) -> Tensor:
    """-ln p(y) = rate - y ln rate + ln y!, per sample: (B, 1) and (B, 1) to (B,)."""
    return (log_rate.exp() - y * log_rate + torch.lgamma(y + 1)).sum(1)


def draw_counts(log_rate: Tensor, key: Tensor) -> Tensor:
    """y ~ Poisson(rate), by counting how many cumulative probabilities lie below a uniform."""
    u = random.uniform(key, log_rate.numel()).reshape(log_rate.shape)
    return (cumulative(log_rate.exp()) < u.unsqueeze(-1)).sum(-1).to(log_rate.dtype)


def cumulative(rate: Tensor) -> Tensor:
    """P(y <= k) for k = 0 .. LARGEST: (..., LARGEST + 1)."""
    k = torch.arange(LARGEST + 1, dtype=rate.dtype, device=rate.device)
    rate = rate.unsqueeze(-1)
    return (k * rate.log() - rate - torch.lgamma(k + 1)).exp().cumsum(-1)


def sample(data: tuple[Tensor, Tensor], options: argparse.Namespace) -> Posterior:
    torch.manual_seed(options.seed)
    network = nn.Sequential(
        nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1)
    )
    # targets="model": the metric is the Fisher matrix proper, from counts that the network itself
    # draws. That is what LogLoss needs ``sample`` for; with targets="data" it can be left out.
    sampler = Langevin(
        network,
        likelihoods.LogLoss(poisson_loss, sample=draw_counts),
        prior={"0.*": priors.Gaussian(variance=4.0), "*": priors.Gaussian(variance=0.1)},
        preconditioner=preconditioners.QuasiDiagonalFisher(targets="model", damping=0.1),
        step_size=1e-2,
        chains=4,
        init="fan_in",
        seed=options.seed,
        device=options.device,
        compile=False if options.quick else "auto",
    )
    steps, thin = (80, 4) if options.quick else (16_000, 60)
    return sampler.sample(
        data, steps=steps, batch_size=200, burn_in=steps // 4, thin=thin, progress=False
    )


def score(posterior: Posterior, x: Tensor, y: Tensor) -> tuple[dict[str, float], Tensor]:
    """LogLoss does not say what a predictive distribution is, so we do: the average over networks
    of Poisson(exp(output)). Returns scores and the counts' places in it, uniform if calibrated."""
    rates = posterior.predict(x).samples.exp().cpu()  # (network, n, 1)
    average = torch.stack([cumulative(r[:, 0]) for r in rates]).mean(0)  # (n, LARGEST + 1)
    y = y[:, 0].long()
    upto = average.gather(1, y.unsqueeze(1))[:, 0]
    below = torch.where(y > 0, average.gather(1, (y - 1).clamp_min(0).unsqueeze(1))[:, 0], 0.0)
    # Counts are discrete: a place between P(< y) and P(<= y), at random, is exactly uniform.
    u = torch.rand(len(y), generator=torch.Generator().manual_seed(0))
    place = below + u * (upto - below)
    scores = {
        "nll": float(-(upto - below).log().mean()),
        "rmse of the mean count": float((rates.mean(0)[:, 0] - y).square().mean().sqrt()),
        "inside 50% intervals": float(((place > 0.25) & (place < 0.75)).float().mean()),
        "inside 90% intervals": float(((place > 0.05) & (place < 0.95)).float().mean()),
    }
    return scores, place


def truth_and_constant(x: Tensor, y: Tensor, mean_count: float) -> dict[str, float]:
    """What the true rates would score, which nothing can beat, and a constant rate."""
    truth = true_rate(12 * (x[:, 0] + 1), x[:, 1]).log().unsqueeze(1)
    constant = torch.full_like(truth, math.log(mean_count))
    return {
        "nll of the true rates": float(poisson_loss(truth, y).mean()),
        "nll of a constant rate": float(poisson_loss(constant, y).mean()),
    }


def draw(posterior: Posterior, data: tuple[Tensor, Tensor], place: Tensor, file: Path) -> None:
    figure = Figure(figsize=(8, 3.4), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(2, 1))
    hour = torch.linspace(0, 24, 145)
    for weekend, colour, name in ((0.0, "C0", "working day"), (1.0, "C1", "weekend")):
        day = torch.full_like(hour, weekend)
        inputs = torch.stack([hour / 12 - 1, day], dim=1)
        rates = posterior.predict(inputs).samples[..., 0].exp().cpu()
        low, high = rates.quantile(torch.tensor([0.025, 0.975]), dim=0)
        left.fill_between(hour, low, high, color=colour, alpha=0.3, lw=0)
        left.plot(hour, rates.mean(0), color=colour, label=f"{name}: mean rate, 95 % band")
        left.plot(hour, true_rate(hour, day), color="k", lw=0.8, ls="--")
        those = data[0][:, 1] == weekend
        left.plot(12 * (data[0][those, 0] + 1), data[1][those, 0], ".", color=colour, ms=1.5)
    left.set(xlabel="hour", ylabel="calls in an hour (dashed: the true rate)", xlim=(0, 24))
    left.legend(fontsize=7)
    right.hist(place, bins=10, range=(0, 1), color="C0", alpha=0.6)
    right.axhline(len(place) / 10, color="k", lw=0.8, ls="--")
    right.set(xlabel="place of a new count in its\npredictive distribution", ylabel="new counts")
    figure.savefig(file, dpi=110)


def main(argv: list[str] | None = None) -> dict[str, object]:
    options = arguments(argv)
    data, test = calls(1000, seed=options.seed), calls(2000, seed=options.seed + 1)
    posterior = sample(data, options)

    scores, place = score(posterior, *test)
    scores |= truth_and_constant(*test, mean_count=float(data[1].mean()))
    for name, value in scores.items():
        print(f"{name:<24} {value:.3f}")
    print(posterior.diagnose(test[0][:40], data=data))
    draw(posterior, data, place, options.out / "poisson_counts.png")

    results = {"scores": scores, "settings": posterior.config}
    (options.out / "poisson_counts.json").write_text(json.dumps(results, indent=1))
    return results


def arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("runs/poisson_counts"))
    parser.add_argument("--quick", action="store_true", help="a few seconds; not converged")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(argv)
    options.out.mkdir(parents=True, exist_ok=True)
    return options


if __name__ == "__main__":
    main()
