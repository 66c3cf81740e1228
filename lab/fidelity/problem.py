"""The competition's problem: CIFAR-10 as its jax code prepares it, and HMC's predictions for it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from lab.data import FOLDER, cifar10
from natural_langevin.data import DataError, fashion_mnist, mnist
from natural_langevin.metrics import (
    accuracy,
    agreement,
    expected_calibration_error,
    nll,
    total_variation,
)

#: What the competition subtracts and divides by, colour by colour.
MEAN, DEVIATION = (0.49, 0.48, 0.44), 0.2
#: N(0, 1/5) for every parameter.
PRIOR_VARIANCE = 0.2
HELD_OUT = 0.1
#: Whose images a network of CIFAR-10 has not seen the like of.
FOREIGN = {"mnist": mnist, "fashion-mnist": fashion_mnist}


class Problem(NamedTuple):
    """Images (n, height, width, colours), labels, and the reference's test probabilities."""

    x: Tensor
    y: Tensor
    test_x: Tensor
    test_y: Tensor
    reference: Tensor
    source: str
    #: Images of other data sets, pixels in [0, 1] in the shape of these.
    foreign: Mapping[str, Tensor] = {}

    def to(self, device: str) -> Problem:
        """Everything on a device, but for foreign images."""
        x, y, test_x, test_y, reference = (t.to(device) for t in self[:5])
        return Problem(x, y, test_x, test_y, reference, self.source, self.foreign)

    def pilot(self) -> Problem:
        """Training images alone: the last tenth of them in place of the test images."""
        cut = round(len(self.y) * (1 - HELD_OUT))
        unknown = torch.full_like(self.reference[: len(self.y) - cut], 1 / 10)
        x, y = self.x, self.y
        return Problem(x[:cut], y[:cut], x[cut:], y[cut:], unknown, self.source)


def hmc_predictions() -> tuple[Tensor, Tensor]:
    """HMC's probabilities (10,000, 10) of the test images in official order, and their labels."""
    with np.load(FOLDER / "hmc" / "cifar10.npz") as arrays:
        probabilities, labels = arrays["probabilities"], arrays["labels"]
    return torch.from_numpy(probabilities), torch.from_numpy(labels.astype(np.int64))


def cifar(
    data_dir: str | os.PathLike[str] | None = None, *, foreign: Sequence[str] = ()
) -> Problem:
    """CIFAR-10 itself; ``foreign``: data sets of ``FOREIGN`` whose test images come along."""
    if unknown := set(foreign) - set(FOREIGN):
        raise DataError(
            f"there is no foreign data set {min(unknown)!r}: choose from {', '.join(FOREIGN)}"
        )
    data = cifar10(data_dir)
    reference, labels = hmc_predictions()
    if not torch.equal(labels, data.test_y):
        raise ValueError("the test images are not in the order of HMC's predictions")
    return Problem(
        normalised(data.train_x), data.train_y, normalised(data.test_x), data.test_y, reference,
        data.source, {name: in_colour(FOREIGN[name]().test_x) for name in foreign},
    )  # fmt: skip


def in_colour(x: Tensor) -> Tensor:
    """Grey images (n, 784), pixels in [0, 1], in the shape of CIFAR-10's: black at the edges."""
    return F.pad(x.reshape(-1, 28, 28), (2, 2, 2, 2))[..., None].expand(-1, -1, -1, 3)


def synthetic(count: int = 200) -> Problem:
    """Noise with a stripe whose place is the class: for tests, with the labels as reference."""
    generator, pixels = torch.Generator().manual_seed(0), 8
    y = torch.arange(2 * count) % 10
    x = torch.rand(2 * count, pixels, pixels, 3, generator=generator)
    column = torch.arange(pixels) == (y[:, None] % pixels)
    x = normalised((x + column[:, None, :, None] * (1 + (y >= pixels))[:, None, None, None]) / 3)
    reference = 0.8 * F.one_hot(y[count:], 10) + 0.02
    return Problem(x[:count], y[:count], x[count:], y[count:], reference, "synthetic stripes")


def normalised(x: Tensor) -> Tensor:
    """Pixels in [0, 1] as the competition's code hands them to the network."""
    return (x - torch.tensor(MEAN)) / DEVIATION


def pixels(x: Tensor) -> Tensor:
    """The inverse of ``normalised``."""
    return x * DEVIATION + torch.tensor(MEAN)


def scores(probabilities: Tensor, problem: Problem) -> dict[str, float]:
    """Against the reference, and against the labels."""
    p, y = probabilities.cpu(), problem.test_y.cpu()
    return {
        "agreement": agreement(p, problem.reference.cpu()),
        "total_variation": total_variation(p, problem.reference.cpu()),
        "accuracy": accuracy(p, y),
        "nll": nll(p, y),
        "ece": expected_calibration_error(p, y),
    }
