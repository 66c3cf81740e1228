"""Problem: all that is sampled, checked once and frozen.

    pi(theta) ~ [alpha(theta) prod_n p_theta(y_n | x_n)^beta]^(1/T)

is made of a network, a likelihood p and its power beta, a prior alpha, a temperature T and data.
How chains move is in ``Motion``, for how long in ``recipe``. Transforms (``standard_units``,
``frozen_front``) turn one problem into another, which keeps the user's as its ``origin``.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from natural_langevin import priors
from natural_langevin._internal.chains import Batch
from natural_langevin._internal.fingerprints import fingerprint
from natural_langevin._internal.processes import Processes
from natural_langevin.data.loaders import NO_BATCH, SharedBatches, rows_of_batch
from natural_langevin.data.signature import Signature
from natural_langevin.data.streams import (
    InMemory,
    Stream,
    Subsets,
    SymmetricSweeps,
    as_stream,
    usual_batch,
)
from natural_langevin.likelihoods import Likelihood, with_own
from natural_langevin.posterior.units import Units
from natural_langevin.priors import Prior
from natural_langevin.statistics import Network

#: Data that say themselves which rows come when: they are taken as they are.
Ordered = DataLoader[object] | SharedBatches | Subsets | SymmetricSweeps
ORDERED = (DataLoader, SharedBatches, Subsets, SymmetricSweeps)
#: Data as a problem has them: (x, y) in memory, or what comes in an order of its own.
Data = Batch | Ordered
#: Rows of a DataLoader that are looked at beforehand.
LOADER_ROWS = 2000


@dataclass(frozen=True)
class ChainSet:
    """``count`` chains of one seed, and the ``processes`` that have them."""

    count: int
    seed: int
    device: torch.device
    processes: Processes

    @cached_property
    def ids(self) -> Tensor:
        """The numbers of the chains that are here."""
        return torch.tensor(self.processes.own, device=self.device)

    @cached_property
    def every(self) -> Tensor:
        """The numbers of all chains, those of other processes too."""
        return torch.arange(self.count, device=self.device)


@dataclass(frozen=True, eq=False)
class Problem:
    """``prior``, ``temperature`` and ``power`` are those of all chains. ``num_data``: N, where it
    was given. ``data``: None of a problem that is stepped through by hand. ``held_out``: rows (x,
    y) that choose in place of folds of the data. ``microbatch``, ``clip``, ``anchors`` (the steps
    between two control variates) determine how the gradient of the likelihood is computed.

    ``origin``: the user's problem, if this one is a transform of it; ``units``: those of the data
    here, if they differ."""

    network: Network
    template: nn.Module  # the same without hooks, for networks handed out
    signature: Signature
    likelihood: Likelihood
    prior: dict[str, Prior]
    temperature: Tensor
    chains: ChainSet
    power: Tensor | None = None  # beta of the likelihood, (chain,); None: 1
    num_data: float | None = None
    data: Data | None = None
    held_out: Batch | None = None
    microbatch: int | None = None
    clip: float | None = None
    anchors: int | None = None
    origin: Problem | None = None
    units: Units | None = None

    def on(self, data: object) -> Problem:
        """The same problem with these data."""
        if not isinstance(data, ORDERED):
            data = self.signature.split(data)
        return dataclasses.replace(self, data=data)

    def moves_as(self, other: Problem) -> bool:
        """Whether chains of the other problem move as those of this one, on whatever data."""
        names = ("prior", "temperature", "power", "chains", "anchors")
        return all(getattr(self, name) is getattr(other, name) for name in names)

    def with_chains(self, count: int, *, after: int = 0) -> Problem:
        """The same with so many chains, all like the first, in this process; ``after`` so many
        others, whose noise they do not repeat."""
        seed = (self.chains.seed + after) % (1 << 63)
        chains = ChainSet(count, seed, self.device, Processes(count))
        return dataclasses.replace(
            self, chains=chains, temperature=self.temperature[:1].expand(count),
            power=None if self.power is None else self.power[:1].expand(count),
        )  # fmt: skip

    def with_prior(self, prior: priors.PriorLike) -> Problem:
        """The same with another prior."""
        found = priors.resolve(
            with_own(prior, self.likelihood), self.network.trainable(), self.chains.count,
            device=self.chains.device,
        )  # fmt: skip
        return dataclasses.replace(self, prior=found)

    @property
    def device(self) -> torch.device:
        """Where its chains are."""
        return self.chains.device

    @property
    def user(self) -> Problem:
        """The problem as the user knows it."""
        return self if self.origin is None else self.origin

    @property
    def given_data(self) -> Data:
        """The data, which must be there."""
        assert self.data is not None, "a problem without data"
        return self.data

    @property
    def in_memory(self) -> bool:
        """Whether all rows are tensors, in no order of their own."""
        return self.data is not None and not isinstance(self.data, ORDERED)

    @property
    def may_have_anchors(self) -> bool:
        """Whether control variates go with it: data in memory, gradients that add up."""
        return self.in_memory and self.clip is None and not self.likelihood.learns

    @property
    def weights(self) -> int:
        """How many numbers a chain samples."""
        return sum(p.numel() for p in self.network.trainable().values())

    @property
    def first_power(self) -> float:
        """The power of the likelihood of the first chain."""
        return 1.0 if self.power is None else float(self.power[0])

    @property
    def one_temperature(self) -> bool:
        """Whether all chains have the same."""
        return len(set(self.temperature.tolist())) == 1

    def rows(self) -> tuple[Tensor, Tensor, float]:
        """Rows in memory to choose by, x and y, and N. A DataLoader lends the first of its batches,
        those of its first one's shape."""
        data, known = self.given_data, self.num_data
        if isinstance(data, Subsets):
            return data.x, data.y, known or data.rows.shape[1]
        if isinstance(data, SymmetricSweeps):
            return data.x, data.y, known or len(data.x)
        if not isinstance(data, DataLoader | SharedBatches):
            return *data, known or len(data[0])
        pairs: list[Batch] = []
        loader = data if isinstance(data, DataLoader) else data.loader
        for item in loader:
            pair = self.signature.split(item)
            if pairs and pair[0].shape[1:] != pairs[0][0].shape[1:]:
                continue
            pairs.append(pair)
            if sum(len(x) for x, _ in pairs) >= LOADER_ROWS:
                break
        if not pairs:
            raise ValueError(NO_BATCH)
        x, y = (torch.cat(parts) for parts in zip(*pairs, strict=True))
        with contextlib.suppress(TypeError):
            known = known or len(loader.dataset)  # type: ignore[arg-type]
        return x, y, float(known or len(x))

    def stream(self, batch_size: int) -> Stream:
        """The data as minibatches of the chains here."""
        return as_stream(
            self.given_data, batch_size=batch_size, chain=self.chains.ids, seed=self.chains.seed,
            device=self.device, split=self.signature.split,
        )  # fmt: skip

    def stream_in_memory(self, batch_size: int, chain: Tensor) -> InMemory:
        """Minibatches of ``rows()``, for the chains of these numbers."""
        x, y, _ = self.rows()
        return InMemory(
            x, y, batch_size=min(batch_size, len(x)), chain=chain, seed=self.chains.seed,
            device=self.device,
        )  # fmt: skip

    def fingerprint(self, stream: Stream) -> str | None:
        """Identifies a run, by the user's rows. Values derived from them (features, other units)
        depend on the machine's rounding."""
        if self.origin is None:
            return stream.fingerprint()
        x, y, _ = self.origin.rows()
        return fingerprint({"x": x, "y": y})

    @cached_property
    def alike(self) -> list[int]:
        """For every chain the first one of its temperature, power of the likelihood and prior: all
        0, unless some differ."""
        return like_chains(self.temperature, self.power, self.prior)

    def log_density(self, weights: Mapping[str, Tensor]) -> Tensor:
        """ln alpha(theta) + beta N/n sum_n ln p(y_n | x_n, theta), in nats, with the first chain's
        prior, which is one of weights in ``units``: a number for ``weights`` (*shape), one each for
        (K, *shape)."""
        shapes = {k: p.shape for k, p in self.network.trainable().items()}
        if set(weights) != set(shapes):
            raise ValueError(f"weights must hold exactly {sorted(shapes)}, got {sorted(weights)}")
        extra = {weights[k].ndim - len(shape) for k, shape in shapes.items()}
        fits = all(weights[k].shape[weights[k].ndim - len(s) :] == s for k, s in shapes.items())
        if len(extra) > 1 or extra - {0, 1} or not fits:
            wanted = {k: tuple(s) for k, s in shapes.items()}
            got = {k: tuple(w.shape) for k, w in weights.items()}
            raise ValueError(
                f"weights must have the shapes {wanted}, each with the same leading axis or none, "
                f"got {got}"
            )
        x, y, num_data = self.rows()
        x, y, count = x.to(self.device), y.to(self.device), self.first_power * num_data
        inside = weights if self.units is None else self.units.standard(weights)
        theta = {k: w[None] if extra == {0} else w for k, w in inside.items()}
        first = next(iter(theta.values()))
        learned = self.likelihood.init(1, dtype=first.dtype, device=first.device)
        learned = {k: v[0] for k, v in learned.items()}
        prior = priors.of_chains(self.prior, torch.zeros(len(first), dtype=torch.long))
        rows = []
        for row in range(len(first)):
            outputs = self.network.call({k: w[row] for k, w in theta.items()}, x.clone())
            rows.append(-count / len(x) * self.likelihood.log_loss(outputs, y, learned).sum())
        total = torch.stack([prior[k].log_density(w) for k, w in theta.items()]).sum(0)
        found = torch.stack(rows) + total
        found = found if self.units is None else found - count * self.units.shift
        return found[0] if extra == {0} else found

    @property
    def loaders_batch(self) -> int | None:
        """Rows of a DataLoader's batches, which nothing else decides; None: data in memory."""
        return rows_of_batch(self.given_data)

    def usual_batch(self, *, most: float) -> int:
        """The default number of rows of a minibatch."""
        return usual_batch(self.given_data, most=most)


def like_chains(temperature: Tensor, power: Tensor | None, prior: Mapping[str, Prior]) -> list[int]:
    """See ``Problem.alike``."""
    values = [temperature, *([] if power is None else [power])]
    for one in prior.values():
        values += priors.chainwise(one).values()
    rows = [v.detach().cpu().reshape(len(v), -1).numpy() for v in values]
    own = [tuple(r[chain].tobytes() for r in rows) for chain in range(len(temperature))]
    first = {settings: chain for chain, settings in reversed(list(enumerate(own)))}
    return [first[settings] for settings in own]
