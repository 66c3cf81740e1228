"""Every method on every shifted test set and on foreign images; what is done is in the file."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lab.data import cifar10
from lab.results import open_results, write_results
from lab.shift.corruptions import STRENGTHS, corrupted
from lab.shift.methods import METHODS, Members, Settings, timed
from natural_langevin import metrics
from natural_langevin.cli.experiments.origin import origin
from natural_langevin.data import Dataset, fashion_mnist

FOREIGN = ("fashion-mnist", "cifar10", "shuffled")


class ShiftError(ValueError):
    """Results of other settings, or a name that there is not."""


def run(
    data: Dataset,
    out: Path,
    *,
    settings: Settings,
    foreign: Sequence[str] = FOREIGN,
    names: Sequence[str] = tuple(METHODS),
    data_dir: str | None = None,
    device: str = "cpu",
    say: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """The content of ``out``, to which every method is added as soon as it is done."""
    for name in names:
        if name not in METHODS:
            raise ShiftError(f"there is no method {name!r}: choose from {', '.join(METHODS)}")
    described = dataclasses.asdict(settings) | {"data": data.name, "foreign": list(foreign)}
    results = open_results(out, described, {}, ShiftError)
    x, y = data.test_x[: settings.images], data.test_y[: settings.images]
    train_x, train_y = data.train_x.to(device), data.train_y.to(device)
    others = {name: foreign_images(name, x, data_dir) for name in foreign}
    for name in names:
        if name in results["rows"]:
            continue
        members, seconds = timed(name, train_x, train_y, data.num_classes, settings)
        row: dict[str, Any] = {"title": METHODS[name][0], "seconds": seconds}
        row |= looked_at(members, x, y, others)
        results["rows"][name] = row
        results |= origin(device)
        write_results(out, results)
        say(
            f"{row['title']}: {seconds:.0f} s, NLL {row['clean']['nll']:.4f}, "
            + ", ".join(f"AUROC {k} {v['epistemic']:.3f}" for k, v in row["foreign"].items())
        )
    return results


def looked_at(members: Members, x: Tensor, y: Tensor, others: dict[str, Tensor]) -> dict[str, Any]:
    """Scores as they were trained for, at every strength of every shift, and AUROCs."""
    inside = members(x)
    shifts = {
        kind: [scores(members(corrupted(x, kind, strength)), y) for strength in range(1, 6)]
        for kind in STRENGTHS
    }
    found = {}
    for name, images in others.items():
        outside = members(images)
        found[name] = {
            "epistemic": metrics.ood_auroc(uncertainty(inside)[1], uncertainty(outside)[1]),
            "total": metrics.ood_auroc(uncertainty(inside)[0], uncertainty(outside)[0]),
        }
    return {"clean": scores(inside, y), "shifts": shifts, "foreign": found}


def scores(p: Tensor, y: Tensor) -> dict[str, float]:
    """Of probabilities (network, n, classes), averaged over networks."""
    mean = p.mean(0)
    return {
        "nll": metrics.nll(mean, y),
        "accuracy": metrics.accuracy(mean, y),
        "ece": metrics.expected_calibration_error(mean, y),
        "epistemic": float(uncertainty(p)[1].mean()),
    }


def uncertainty(p: Tensor) -> tuple[Tensor, Tensor]:
    """Entropy of the mean, and what of it the networks disagree on, in nats: (n,) each."""
    total = torch.special.entr(p.mean(0)).sum(1)
    return total, (total - torch.special.entr(p).sum(2).mean(0)).clamp_min(0)


def foreign_images(name: str, like: Tensor, data_dir: str | None) -> Tensor:
    """As many images of another data set, in the shape of ``like`` (n, pixels).

    "shuffled" are the same images with their pixels in another order: the same brightness, and
    nothing that was learned. CIFAR-10's are made grey and cropped."""
    count, pixels = like.shape
    if name == "shuffled":
        return like[:, torch.randperm(pixels, generator=torch.Generator().manual_seed(0))]
    if name == "fashion-mnist":
        return fashion_mnist(data_dir).test_x[:count]
    if name == "cifar10":
        side = math.isqrt(pixels)
        edge = (32 - side) // 2
        grey = cifar10(data_dir).test_x[:count].mean(3)
        return grey[:, edge : edge + side, edge : edge + side].reshape(-1, pixels)
    raise ShiftError(f"there is no foreign data set {name!r}: choose from {', '.join(FOREIGN)}")
