"""Shards: parameters of which every rank holds some rows (DTensors, as FSDP2 makes them).

An ordinary tensor is its own only shard, so that the optimizer need not ask which it has. Rows are
output units, so a unit and its bias lie on one rank, and the shards of a tensor are consecutive
runs of its elements, which is what the noise is addressed by.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from natural_langevin.priors import Flat, Gaussian, Prior


def is_sharded(value: Any) -> bool:
    """By attribute: importing the class takes a second, which users of one device need not wait."""
    return hasattr(value, "device_mesh") and hasattr(value, "to_local")


def local(value: Any) -> Tensor:
    """This rank's rows."""
    return value.to_local() if is_sharded(value) else value


def whole(value: Any) -> Tensor:
    """All rows, gathered: every rank must ask."""
    return value.full_tensor() if is_sharded(value) else value


def like(parameter: Any, rows: Tensor) -> Tensor:
    """``rows`` as this rank's shard of a tensor of the parameter's shape."""
    if not is_sharded(parameter):
        return rows
    from torch.distributed.tensor import DTensor

    return DTensor.from_local(
        rows, parameter.device_mesh, parameter.placements, run_check=False,
        shape=parameter.shape, stride=parameter.stride(),
    )  # fmt: skip


def offset(parameter: Any) -> int:
    """How many elements of the whole tensor come before this rank's shard."""
    if not is_sharded(parameter):
        return 0
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    _, start = compute_local_shape_and_global_offset(
        parameter.shape, parameter.device_mesh, parameter.placements
    )
    return int(start[0]) * (parameter.numel() // parameter.shape[0]) if parameter.ndim else 0


def rows_of_prior(prior: Prior, parameter: Any) -> Prior:
    """The prior of this rank's rows, where every weight has a mean of its own."""
    mean = prior.chain_values().get("mean")
    if not is_sharded(parameter) or not isinstance(mean, Tensor) or mean.ndim < 2:
        return prior
    start = offset(parameter) // max(1, parameter.numel() // parameter.shape[0])
    rows = mean[:, start : start + len(local(parameter))]
    return dataclasses.replace(prior, mean=rows)  # type: ignore[type-var]


def reduced(whole: Tensor, parameter: Any) -> Tensor:
    """The sum over all ranks of tensors of the parameter's shape: this rank's rows of it."""
    from torch.distributed.tensor import DTensor, Partial

    mesh = parameter.device_mesh
    parts = DTensor.from_local(whole, mesh, [Partial()] * mesh.ndim, run_check=False)
    return parts.redistribute(mesh, parameter.placements).to_local()


def groups_of(parameter: Any, group: Any = None) -> list[Any]:
    """The process groups that together hold all ranks which share the parameter; none alone.

    ``group``: those that DistributedDataParallel averages gradients over."""
    if is_sharded(parameter):
        mesh = parameter.device_mesh
        return [mesh.get_group(dimension) for dimension in range(mesh.ndim)]
    return [] if group is None else [group]


def total(values: list[float], parameter: Any, groups: list[Any]) -> list[float]:
    """Sums over all ranks of the groups; the same on every one of them."""
    if not groups:  # nothing to ask the device for, which the host would wait for
        return values
    found = torch.tensor(values, dtype=torch.float64, device=parameter.device)
    for group in groups:
        add_up([found], group)
    return [float(v) for v in found.tolist()]


def largest(value: Tensor, parameter: Any) -> Tensor:
    """The maximum over all ranks that share a sharded parameter."""
    value = value.clone()
    for group in groups_of(parameter):
        dist.all_reduce(value, dist.ReduceOp.MAX, group=group)
    return value


def gathered(text: str, groups: list[Any]) -> dict[int, str]:
    """The texts of all ranks of the groups, by rank."""
    found = {dist.get_rank(): text}
    for group in groups:
        parts: list[Any] = [None] * group.size()
        dist.all_gather_object(parts, found, group=group)
        found = {rank: one for part in parts for rank, one in part.items()}
    return dict(sorted(found.items()))


def add_up(tensors: Iterable[Tensor], group: Any) -> None:
    """Sums over the ranks of a group, in place."""
    for tensor in tensors:
        dist.all_reduce(tensor, group=group)


def replicas() -> Any:
    """The process group of the DistributedDataParallel whose forward pass is running, or None."""
    wrapper = torch.nn.parallel.DistributedDataParallel
    active = getattr(wrapper, "_active_ddp_module", None)
    return None if active is None else active.process_group


def place(group: Any) -> tuple[int, int]:
    """This rank in a group, and how many there are."""
    return (0, 1) if group is None else (group.rank(), group.size())


def check_shards(
    params: dict[str, Any], units: dict[str, tuple[str, ...]], prior: dict[str, Prior]
) -> None:
    """Refuses what would need rows of other ranks."""
    for name, p in params.items():
        if not is_sharded(p):
            raise TypeError(
                f"parameter {name!r} is not sharded while others are: apply fully_shard to the "
                "root module too, before the optimizer is made"
            )
        if any(not (one.is_replicate() or one.is_shard(0)) for one in p.placements):
            raise ValueError(
                f"parameter {name!r} is placed as {p.placements}: only rows may be sharded "
                "(Shard(0), output units), so that units stay whole. Leave out the "
                "shard_placement_fn, and use no tensor parallelism"
            )
        if not isinstance(prior[name], Gaussian | Flat):
            raise ValueError(
                f"{type(prior[name]).__name__} of {name!r} looks at the whole tensor, of which a "
                "rank has only some rows: use priors.Gaussian(...)"
            )
    for bias, weights in units.items():
        for weight in weights:
            refuse_torn_units(bias, params[bias], weight, params[weight])


def refuse_torn_units(bias: str, b: Any, weight: str, w: Any) -> None:
    """A unit's bias and weights must lie on the same rank."""
    same = (b.device_mesh, b.placements, b.shape[:1]) == (w.device_mesh, w.placements, w.shape[:1])
    if not same:
        raise ValueError(
            f"the units of {weight!r} {tuple(w.shape)} and their biases {bias!r} {tuple(b.shape)} "
            "are cut in different places, so that a unit would lie on two ranks: shard both in one "
            "fully_shard(layer) call, or use DiagonalFisher()"
        )


def any_sharded(params: Iterable[Any]) -> bool:
    """Whether any of them is a DTensor."""
    return any(is_sharded(p) for p in params)
