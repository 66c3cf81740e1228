"""Ensembles accumulated as the chains run: sums of probabilities, no stored parameters.

Memory depends on the chains and the inputs scored, never on how many samples are drawn.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from natural_langevin._internal.chains import Params

#: Inputs on which every single draw is remembered, for the effective sample size.
PROBES = 50


class Scorer:
    """Class probabilities of all chains' networks on the inputs of a set: (chain, n, classes).

    In float64: logits of single draws lie 100 and more apart, where float32 has exactly 0, and one
    such image adds 708 / n to a mean NLL."""

    def __init__(self, model: nn.Module, sets: dict[str, tuple[Tensor, Tensor]]) -> None:
        self.sets, self._model = sets, model

    def probabilities(self, params: Params, x: Tensor) -> Tensor:
        """Class probabilities of every chain: (chain, N, K)."""

        def one(p: Params, rows: Tensor) -> Tensor:
            return functional_call(self._model, p, (rows,)).double().softmax(-1)

        # Bounded by the widest activations of all chains at once.
        rows = max(1000, 600_000 // len(next(iter(params.values()))))
        with torch.no_grad():
            parts = [vmap(one, in_dims=(0, None))(params, part) for part in x.split(rows)]
        return torch.cat(parts, dim=1)


class Ensemble:
    """Running sums of probabilities over kept iterates, for every chain and every scored set."""

    def __init__(
        self, scorer: Scorer, *, chains: int, classes: int, draws: int, train_every: int = 1
    ) -> None:
        self.scorer, self._train_every = scorer, train_every
        device = next(iter(scorer.sets.values()))[0].device
        self.sums = {
            name: torch.zeros(chains, len(x), classes, dtype=torch.float64, device=device)
            for name, (x, _) in scorer.sets.items()
        }
        self.kept = torch.zeros((), dtype=torch.int64)
        # Of the last set (the one that is tested on): the ensemble's NLL so far, and every draw's
        # probability of the right class on a few probes.
        self.ensemble_nll = torch.full((draws, chains), torch.nan)
        scored = len(list(scorer.sets.values())[-1][1])
        self.probes = torch.full((draws, chains, min(PROBES, scored)), torch.nan)

    def add(self, params: Params) -> None:
        """Adds the predictions of one iterate of all chains to the running sums."""
        index = int(self.kept)
        for name, (x, y) in self.scorer.sets.items():
            if name == "train" and index % self._train_every:
                continue
            p = self.scorer.probabilities(params, x)
            self.sums[name] += p
            last = (p, name, y)
        p, name, y = last
        right = p.gather(2, y[None, :, None].expand(len(p), -1, 1)).squeeze(2)
        self.probes[index] = right[:, :PROBES].cpu()
        self.kept += 1
        total = self.sums[name].gather(2, y[None, :, None].expand(len(p), -1, 1)).squeeze(2)
        self.ensemble_nll[index] = -(total / (index + 1)).clamp_min(1e-300).log().mean(1).cpu()

    def mean(self, name: str) -> Tensor:
        """Probabilities averaged over kept iterates: (chain, n, classes)."""
        every = self._train_every if name == "train" else 1
        return self.sums[name] / -(-int(self.kept) // every)

    def state(self) -> dict[str, Any]:
        """Everything a checkpoint must hold."""
        return {
            "sums": self.sums,
            "kept": self.kept,
            "ensemble_nll": self.ensemble_nll,
            "probes": self.probes,
        }
