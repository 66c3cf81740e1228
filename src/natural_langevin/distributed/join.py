"""Joining the process group that ``torchrun`` prepared, or being a group of one."""

from __future__ import annotations

import atexit
import itertools
import math
import os
import sys
from collections.abc import Callable
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist
from torch.distributed import HashStore, rendezvous  # type: ignore[attr-defined]
from torch.distributed.distributed_c10d import PrefixStore

from natural_langevin.distributed.group import Group, GroupError

#: Seconds after which a rank gives the others up, unless NATURAL_LANGEVIN_TIMEOUT says otherwise.
TIMEOUT = 600.0

_joined: tuple[object, Group] | None = None
#: How often this process, like all others, has joined a group; what is left in the store of an
#: earlier one must not be read.
_times = itertools.count()


def launched() -> bool:
    """Whether several processes were started for this run (or a group is there already)."""
    return dist.is_available() and (dist.is_initialized() or "RANK" in os.environ)


def join(device: torch.device | str | None = None, *, timeout: float | None = None) -> Group:
    """The group of this run's processes, the same object every time.

    A group that the script has initialised is used as it is. Otherwise torchrun's variables are
    followed: gloo on the CPU, and on GPUs NCCL too, every process on the GPU of its LOCAL_RANK.
    Without torchrun it is a group of one. Once joined, ``device`` may be left out. ``timeout``:
    seconds, for every collective."""
    global _joined
    seconds, at = _timeout(timeout), _own_device(device)
    if not launched():
        return alone(at)
    if dist.is_initialized() and _joined is not None and _joined[0] is dist.group.WORLD:
        group = _joined[1]
        if device is not None and group.device != at:
            raise GroupError(f"this process computes on {group.device} already, got device={at}")
        return group
    group = _enter(at, seconds)
    _joined = (dist.group.WORLD, group)
    return group


def alone(device: torch.device | str = "cpu") -> Group:
    """This process as a group of one, whatever others there are."""
    return Group(HashStore(), 0, 1, torch.device(device), TIMEOUT)


def _enter(device: torch.device, seconds: float) -> Group:
    limit = timedelta(seconds=seconds)
    # torchrun's store outlives the workers, and with them what an earlier attempt wrote.
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    prefix = f"natural_langevin/attempt {attempt}/{next(_times)}"
    if dist.is_initialized():
        store = PrefixStore(prefix, dist.distributed_c10d._get_default_store())
        return Group(store, dist.get_rank(), dist.get_world_size(), device, seconds)
    missing = [v for v in ("WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT") if v not in os.environ]
    if missing:
        raise GroupError(
            f"RANK is set and {', '.join(missing)} not: start the script with torchrun, which sets "
            "all of them, or unset RANK to run it alone"
        )
    try:
        found, rank, world = next(iter(rendezvous("env://", timeout=limit)))
    except ValueError as error:
        names = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
        given = ", ".join(f"{name}={os.environ[name]!r:.40}" for name in names)
        raise GroupError(
            f"{given} cannot be used ({error}): start the script with torchrun, which sets all of "
            "them, or unset RANK to run it alone"
        ) from None
    except RuntimeError as error:
        where = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        raise GroupError(
            f"the other processes cannot be reached at {where} ({str(error).splitlines()[0]}): "
            "check that this address is reachable from every node"
        ) from error
    store = PrefixStore(f"{prefix} of {world}", found)
    group = Group(store, rank, world, device, seconds)
    group.barrier("the start of the run")  # says who is missing, which torch's own start does not
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo",
        store=PrefixStore("torch", store),
        rank=rank,
        world_size=world,
        timeout=limit,
        device_id=device if device.type == "cuda" else None,
    )
    atexit.register(_leave)
    return group


def _leave() -> None:
    """At the end of a script: NCCL complains about a group that nobody destroyed."""
    if dist.is_initialized():
        dist.destroy_process_group()


def _own_device(device: torch.device | str | None) -> torch.device:
    """``cuda`` is this process's GPU, that of its LOCAL_RANK."""
    at = torch.device("cpu" if device is None else device)
    if at.type != "cuda" or "cuda:" in str(at):
        return at
    index, there = _local_rank(), torch.cuda.device_count()
    if index >= there:
        raise GroupError(
            f"this process would use GPU {index}, and the machine has {there}: start torchrun "
            f"with --nproc-per-node {max(there, 1)}, or compute with device='cpu'"
        )
    return torch.device("cuda", index)


def _local_rank() -> int:
    text = os.environ.get("LOCAL_RANK", "0")
    if not text.isdecimal():
        raise GroupError(f"LOCAL_RANK must be a whole number, got {text!r:.40}: use torchrun")
    return int(text)


def _timeout(given: float | None) -> float:
    name, value = "timeout", given
    if given is None:
        name = "NATURAL_LANGEVIN_TIMEOUT"
        text = os.environ.get(name, str(TIMEOUT))
        try:
            value = float(text)
        except ValueError:
            raise ValueError(f"{name} must be a number of seconds, got {text!r}") from None
    assert value is not None
    if not (0 < value < math.inf) or value > sys.maxsize / 1e9:
        raise ValueError(f"{name} must be a positive number of seconds, got {value!r}")
    return float(value)


T = TypeVar("T")


def is_rank_zero() -> bool:
    """Whether this process prints and writes: the first of a run, or the only one."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank() == 0
    return not launched() or os.environ.get("RANK", "0") == "0"


def on_rank_zero(what: str, action: Callable[[], T]) -> T | None:
    """``action()`` at the first process; None at the others. Where it fails, it fails at all."""
    if not launched():
        return action()
    with join().together(what):
        return action() if is_rank_zero() else None
