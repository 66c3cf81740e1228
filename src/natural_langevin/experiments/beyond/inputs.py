"""Images as the chains see them: each chain its own blur, all of them in one run."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from natural_langevin.data.streams import Subsets
from natural_langevin.experiments.beyond.noisy import with_noise
from natural_langevin.experiments.table1.ensemble import Scorer
from natural_langevin.priors import blur_pixels
from natural_langevin.types import Params


def mapped(x: Tensor, length: float) -> Tensor:
    """x M for square images; ``length`` 0: x."""
    if not length:
        return x
    side = math.isqrt(x.shape[1])
    if side * side != x.shape[1]:
        raise ValueError(f"images must be square, got {x.shape[1]} pixels")
    blur = blur_pixels(side, side, length).to(x.device)
    return (x.double() @ blur).to(x.dtype)  # in full precision, whatever products are allowed


def views(x: Tensor, y: Tensor, lengths: Sequence[float]) -> Subsets:
    """The data of chains whose blurs have these ``lengths``: every blur's images are stored once,
    one block after the other, and a chain sees the rows of its own."""
    known = list(dict.fromkeys(lengths))
    block = torch.tensor([known.index(length) for length in lengths])
    rows = (torch.arange(len(x)) + block[:, None] * len(x)).to(x.device)
    images = torch.cat([mapped(x, length) for length in known])
    return Subsets(images, y.repeat(len(known)), rows)


class BlurredScorer(Scorer):
    """Class probabilities where every chain's network sees the images through its own blur, and
    takes its own share of labels for random ones (``noise``)."""

    def __init__(
        self,
        model: nn.Module,
        sets: dict[str, tuple[Tensor, Tensor]],
        lengths: Sequence[float],
        noise: Sequence[float] = (0.0,),
    ) -> None:
        super().__init__(model, sets)
        device = next(iter(sets.values()))[0].device
        self._noise = torch.tensor(noise, dtype=torch.float64, device=device)[:, None, None]
        self._chains = {
            length: torch.tensor([k for k, own in enumerate(lengths) if own == length]).to(device)
            for length in dict.fromkeys(lengths)
        }
        self._order = torch.cat(list(self._chains.values())).argsort()
        self._images = {
            (name, length): mapped(x, length)
            for name, (x, _) in sets.items()
            for length in self._chains
        }

    def probabilities(self, params: Params, x: Tensor) -> Tensor:
        """(chain, n, classes) of the images x of one of the sets, as they are in the file."""
        name = next(n for n, (images, _) in self.sets.items() if images is x)
        parts = [
            super(BlurredScorer, self).probabilities(
                {k: p[chains] for k, p in params.items()}, self._images[name, length]
            )
            for length, chains in self._chains.items()
        ]
        return with_noise(torch.cat(parts)[self._order], self._noise)
