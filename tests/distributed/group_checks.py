"""What every rank does in ``test_group.py``."""

from __future__ import annotations

import contextlib
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from natural_langevin.distributed.group import Group, GroupError
from natural_langevin.distributed.join import join


def another(group: Group, name: str, timeout: float = 1.0) -> Group:
    """A group of its own that a check may break."""
    store = dist.PrefixStore(name, group._store)
    return Group(store, group.rank, group.world, group.device, timeout)


def check_joining(group: Group, folder: Path) -> Any:
    again = join("cpu")
    total = torch.tensor(float(group.rank))
    dist.all_reduce(total)
    values = group.exchange("a meeting", f"from {group.rank}")
    return {
        "same": again is group,
        "backend": dist.get_backend(),
        "sum": total.item(),
        "values": values,
        "rank": [group.rank, group.world, group.first],
    }


def check_a_group_of_the_script(group: Group, folder: Path) -> Any:
    """The script's own group, after another one was given up: joined as it is."""
    group.close()
    dist.init_process_group("gloo", timeout=timedelta(seconds=50))
    found = join("cpu")
    return [found is group, found.rank, found.exchange("in the new group", str(group.rank))]


def check_agreeing(group: Group, folder: Path) -> None:
    group.agree("the settings", {"b": torch.nn.Tanh(), "a": [1, 2.5]})
    group.agree("other settings", {})


def check_disagreeing(group: Group, folder: Path) -> None:
    settings = {"seed": 0, "step_size": 1e-3 if group.rank == 1 else 2e-3}
    group.agree("the settings", settings)


def check_a_setting_is_missing(group: Group, folder: Path) -> None:
    group.agree("the settings", {"seed": 0} | ({"clip": 3} if group.rank == 0 else {}))


def check_one_rank_raises(group: Group, folder: Path) -> None:
    with group.together("preparing the data"):
        if group.rank == 1:
            raise FileNotFoundError("there is no train.csv")


def check_one_rank_raises_before_a_meeting(group: Group, folder: Path) -> None:
    """The others wait in the middle of the block for a rank that will not come."""
    with group.together("everything"), group.together("preparing"):
        if group.rank == 0:
            raise ValueError("no data")
        group.agree("the settings", {"seed": 0})


def check_after_errors_all_goes_on(group: Group, folder: Path) -> list[str]:
    with group.together("something that works"):
        pass
    return group.exchange("still here", str(group.rank))


def check_different_ways(group: Group, folder: Path) -> None:
    group.barrier("the checkpoint" if group.rank == 1 else "the end")


def check_nobody_comes(group: Group, folder: Path) -> None:
    small = another(group, "nobody comes")
    if group.rank == 0:
        try:
            small.barrier("the first checkpoint")
        finally:
            group.barrier("after the time limit")
    else:
        group.barrier("after the time limit")


def check_broken_stays_broken(group: Group, folder: Path) -> None:
    small = another(group, "broken", timeout=0.2)
    if group.rank == 0:
        with contextlib.suppress(GroupError):
            small.barrier("one")
        small.barrier("two")


def impatient_group() -> dist.ProcessGroup:
    """Of all ranks, which have time to make it; its collectives wait for a second."""
    found = dist.new_group(timeout=timedelta(seconds=60))
    dist.distributed_c10d._set_pg_timeout(timedelta(seconds=1), found)
    return found


def check_an_error_in_a_step(group: Group, folder: Path) -> None:
    """Rank 1 does not reach the collective in which rank 0 waits for it."""
    small = another(group, "an error in a step")
    group.barrier("before the new group")
    slow = impatient_group()
    with small.waiting("the steps up to 50"):
        if group.rank == 1:
            raise FloatingPointError("not a number")
        dist.all_reduce(torch.zeros(3), group=slow)


def check_a_collective_fails(group: Group, folder: Path) -> None:
    """Last of all: the connections are gone afterwards. Rank 1 waits elsewhere meanwhile."""
    group.barrier("before the new group")
    slow = impatient_group()
    if group.rank == 1:
        group.exchange("the checkpoint at step 50", "")
        return
    with group.waiting("the sum of the gradients"):
        dist.all_reduce(torch.zeros(3), group=slow)
