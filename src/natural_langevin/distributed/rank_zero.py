"""Rank-zero helpers: work done by one process while the others wait.

For command lines, which do more than sample: they make folders, write files and print.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar, cast

import torch.distributed as dist

from natural_langevin.distributed.join import join, launched

T = TypeVar("T")


def is_rank_zero() -> bool:
    """Whether this process prints and writes: the first of a run, or the only one."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank() == 0
    return not launched() or os.environ.get("RANK", "0") == "0"


def on_rank_zero(what: str, action: Callable[[], T], *, device: str | None = None) -> T | None:
    """``action()`` at the first process; None at the others. Where it fails, it fails at all."""
    if not launched():
        return action()
    with join(device).together(what):
        return action() if is_rank_zero() else None


def rank_zero_first(what: str, action: Callable[[], T], *, device: str | None = None) -> T:
    """``action()`` at all processes, the first one ahead of the others: it may leave something
    for them to find, such as a file that it fetched."""
    found = on_rank_zero(what, action, device=device)
    return cast(T, found) if is_rank_zero() else action()


def split_work(items: list[str], *, device: str | None = None) -> list[str]:
    """The items that fall to this process: every n-th, by the first process's list."""
    if not launched():
        return items
    group = join(device)
    known = group.exchange("sharing the work", "\n".join(items))[0]
    return [item for item in known.split("\n") if item][group.rank :: group.world]


def exists_uncached(path: Path) -> bool:
    """A file, looked for past what a network file system remembers of its folder."""
    return path.name in os.listdir(path.parent)
