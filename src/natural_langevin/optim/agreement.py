"""Ranks that train one network: either all take a step, or none does.

Noise is addressed by seed, chain and step, so the replicas of DistributedDataParallel stay equal
only while all that defines the run is. One sum over the ranks, which counts their samples, also
carries a hash of it (and now and then of the parameters):

    all equal   <=>   (sum_r h_r)^2 = R sum_r h_r^2

Only if that fails are the settings themselves exchanged, and all ranks report the difference.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import nn

from natural_langevin._internal.chains import Params
from natural_langevin.distributed.group import GroupError, differences, error_text
from natural_langevin.distributed.join import join
from natural_langevin.optim import shards
from natural_langevin.run.loop import DivergenceError

#: Steps between two comparisons of the parameters themselves.
EVERY = 100
#: Bits of a hash: sums of its squares over thousands of ranks are exact in float64.
BITS = 20
_VIEWS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


class Local(NamedTuple):
    """One rank's contribution to a step: ``skip`` if its GradScaler found an infinity, ``failure``
    if it raised an error."""

    gradient: Params
    samples: int = 0
    broken: list[str] = []  # noqa: RUF012 - parameters whose gradient is not finite
    skip: bool = False
    failure: Exception | None = None


class Agreement:
    """Compares the ranks' optimizers before every step, one beside each of them.

    ``settings()``: what defines the run, in words; read once. ``changing()``: what may change from
    step to step, in numbers."""

    def __init__(
        self, settings: Callable[[], Mapping[str, Any]], changing: Callable[[], Mapping[str, Any]]
    ) -> None:
        self._settings, self._changing = settings, changing
        self._known: dict[str, Any] | None = None
        self._steps = 0

    def settle(
        self, mine: Local, sampled: Mapping[str, nn.Parameter], reduction: str, group: Any
    ) -> tuple[float, float] | None:
        """Samples of this step on all ranks, and how many ranks there are; None: all skip it.

        Where one rank cannot take the step none does: the error is raised on all of them."""
        first = next(iter(sampled.values()))
        groups = shards.groups_of(first, group)
        if not groups:
            if mine.failure is not None:
                raise mine.failure
            if mine.skip:
                return None
        described = self._described(sampled) if groups else {}
        h, seen, bad = _hash(described) if groups else 0, float(mine.samples), mine.broken
        values = [seen, seen**2, len(bad), 1, mine.failure is not None, mine.skip, h, h * h]
        with waiting(f"step {described.get('step')} of the optimizer", first, groups):
            totals = shards.total([float(v) for v in values], first, groups)
            samples, squares, broken, ranks, failed, skipped, hashes, squared = totals
            told = shards.gathered(error_text(mine.failure), groups) if failed else {}
            if not failed and int(hashes) ** 2 != int(ranks) * int(squared):
                _name_difference(described, groups)
        if mine.failure is not None:  # outside of ``waiting``: all ranks know it already
            raise mine.failure
        if failed:
            names = "; ".join(f"rank {rank} failed: {text}" for rank, text in told.items() if text)
            raise GroupError(f"{names}. No rank took this step; the parameters are as they were")
        self._steps += 1
        if skipped:
            return None
        if broken:
            where = repr(bad[0]) if bad else "a parameter on another rank"
            raise DivergenceError(
                f"the gradient of {where} is not finite; the parameters were left as they are. The "
                "step size is most likely too large: try a tenth of it; more damping or a prior of "
                "smaller variance also help"
            )
        if reduction == "mean" and samples**2 != ranks * squares:
            raise ValueError(
                f"the ranks saw different numbers of samples (this one {mine.samples} of "
                f"{samples:g} on {ranks:g} ranks), so means over them do not add up: use "
                'reduction="sum", or a DistributedSampler with drop_last=True'
            )
        return samples, ranks

    def _described(self, sampled: Mapping[str, nn.Parameter]) -> dict[str, Any]:
        if self._known is None:
            self._known = json.loads(json.dumps(dict(self._settings()), default=str))
        found = self._known | dict(self._changing())
        if self._steps % EVERY == 0 and not shards.any_sharded(sampled.values()):
            found |= {f"the check sum of {k!r}": v for k, v in checksums(sampled).items()}
        return found


def _name_difference(described: Mapping[str, Any], groups: list[Any]) -> None:
    text = json.dumps(described, sort_keys=True, default=str)
    everybody = {rank: json.loads(t) for rank, t in shards.gathered(text, groups).items()}
    raise GroupError(
        f"{differences('what defines the run', everybody)}. Ranks of one network "
        "(DistributedDataParallel, fully_shard) must be one run: seed, chain, num_data, "
        "temperature and lr must be equal. For one chain per rank, give every rank its own "
        "network, not wrapped"
    )


def checksums(sampled: Mapping[str, nn.Parameter]) -> dict[str, int]:
    """Sums of the bits of every parameter."""
    sums = []
    for p in sampled.values():
        bits = p.detach().contiguous().view(_VIEWS[p.element_size()])
        sums.append(bits.sum(dtype=torch.int64))
    return dict(zip(sampled, torch.stack(sums).tolist(), strict=True))


@contextlib.contextmanager
def waiting(label: str, parameter: Any, groups: list[Any]) -> Iterator[None]:
    """Context for sums over ranks: an error names the rank that did not arrive, if the group has
    all ranks."""
    world = torch.distributed.get_world_size() if groups else 1
    if not groups or len(groups) > 1 or groups[0].size() != world:
        yield
        return
    with join(parameter.device).waiting(label):
        yield


def _hash(described: Mapping[str, Any]) -> int:
    text = json.dumps(described, sort_keys=True, default=str)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") % (1 << BITS)
