"""Images as the chains see them: each chain its own blur and slant, all of them in one run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from lab.beyond.deskew import deskewed, square_side
from lab.beyond.noisy import with_noise
from natural_langevin._internal.chains import Params
from natural_langevin.cli.experiments.table1.training import Scorer
from natural_langevin.data.streams import Subsets
from natural_langevin.priors import blur_pixels


class Inputs(NamedTuple):
    """What is done to images first; 0: nothing."""

    length: float = 0.0  # of the blur
    deskew: float = 0.0  # share of their slant that is taken out

    def __str__(self) -> str:
        done = [f"length {self.length:g}"] if self.length else []
        if self.deskew:
            done.append("deskewed" if self.deskew == 1 else f"{self.deskew:g} deskewed")
        return ", ".join(done) or "plain inputs"


def mapped(x: Tensor, inputs: Inputs) -> Tensor:
    """x M for square images, once they are deskewed."""
    x = deskewed(x, inputs.deskew)
    if not inputs.length:
        return x
    side = square_side(x.shape[1])
    blur = blur_pixels(side, side, inputs.length).to(x.device)
    return (x.double() @ blur).to(x.dtype)  # in full precision, whatever products are allowed


def views(x: Tensor, y: Tensor, inputs: Sequence[Inputs]) -> Subsets:
    """The data of chains with these ``inputs``: images of every kind are stored once, one block
    after the other, and a chain sees the rows of its own."""
    known = list(dict.fromkeys(inputs))
    block = torch.tensor([known.index(own) for own in inputs])
    rows = (torch.arange(len(x)) + block[:, None] * len(x)).to(x.device)
    images = torch.cat([mapped(x, one) for one in known])
    return Subsets(images, y.repeat(len(known)), rows)


class ViewScorer(Scorer):
    """Class probabilities where every chain's network sees the images in its own way, and takes
    its own share of labels for random ones (``noise``)."""

    def __init__(
        self,
        model: nn.Module,
        sets: dict[str, tuple[Tensor, Tensor]],
        inputs: Sequence[Inputs],
        noise: Sequence[float] = (0.0,),
    ) -> None:
        super().__init__(model, sets)
        device = next(iter(sets.values()))[0].device
        self._noise = torch.tensor(noise, dtype=torch.float64, device=device)[:, None, None]
        self._chains = {
            one: torch.tensor([k for k, own in enumerate(inputs) if own == one]).to(device)
            for one in dict.fromkeys(inputs)
        }
        self._order = torch.cat(list(self._chains.values())).argsort()
        self._images = {
            (name, one): mapped(x, one) for name, (x, _) in sets.items() for one in self._chains
        }

    def probabilities(self, params: Params, x: Tensor) -> Tensor:
        """(chain, n, classes) of the images x of one of the sets, as they are in the file."""
        name = next(n for n, (images, _) in self.sets.items() if images is x)
        parts = [
            super(ViewScorer, self).probabilities(
                {k: p[chains] for k, p in params.items()}, self._images[name, one]
            )
            for one, chains in self._chains.items()
        ]
        return with_noise(torch.cat(parts)[self._order], self._noise)
