"""Symmetric minibatch sweeps: an epoch's minibatches forwards, then the same ones backwards.

    omega_1, ..., omega_m, omega_m, ..., omega_1

and then another random partition of the data into minibatches. The errors of a minibatch's gradient
cancel over an epoch in any order. What does not is how they act on each other, eta^2 sum over pairs
(i before j) of H_j g_i, which depends on the order; over a sweep and its mirror image every pair
has come both ways, and that dependence is gone (SMS-UBU, Paulin et al. 2024, arXiv 2410.19780). It
costs nothing, and is for any dynamics.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from natural_langevin import random
from natural_langevin.data.memory import InMemory


@dataclass(frozen=True)
class SymmetricSweeps:
    """Data x (N, ...), y (N, ...) whose minibatches come forwards and then backwards:
    ``sampler.sample(data.SymmetricSweeps(x, y), steps=..., batch_size=...)``.

    Every chain has its own orders. What is left over after whole minibatches is dropped for both
    sweeps. Fewest pairs are broken where ``steps`` is a multiple of two epochs."""

    x: Tensor
    y: Tensor


class SymmetricOrder(InMemory):
    """The stream of ``SymmetricSweeps``: epochs 2k and 2k + 1 are permutation k and its mirror."""

    shuffled = False

    def order(self, epoch: int) -> Tensor:
        """The chains' data in the order of this epoch: (chain, num_data)."""
        if epoch != self._epoch:
            sweep, backwards = divmod(epoch, 2)
            order = random.permutation(random.stream(self.origin, sweep), self.num_data)
            if backwards:
                used = self.batches_per_epoch * self.batch_size
                batches = order[:, :used].unflatten(1, (-1, self.batch_size))
                order = torch.cat([batches.flip(1).flatten(1), order[:, used:]], dim=1)
            self._order, self._epoch = order, epoch
        return self._order
