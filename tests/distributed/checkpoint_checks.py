"""What every rank does in ``test_shared_checkpoint.py``: three chains, two groups of two ranks."""

from __future__ import annotations

import contextlib
import json
import os
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import broken_off
import torch
import torch.distributed as dist
from torch.utils import _pytree as pytree

from natural_langevin.distributed.group import Group
from natural_langevin.dynamics.base import State
from natural_langevin.run.checkpoint import NEWEST, PREVIOUS, RunCheckpoint

CHAINS = 3
CONFIG = {"seed": 1, "chains": CHAINS}


def chains_of(group: Group) -> range:
    """Ranks 0 and 1 share chains 0 and 1, ranks 2 and 3 share chain 2."""
    if group.world == 1:
        return range(CHAINS)
    return range(2) if group.rank < group.world / 2 else range(2, 3)


class Ranks:
    """A group as the ``Processes`` of a run with these three chains."""

    def __init__(self, group: Group) -> None:
        self.rank, self.world, self.first = group.rank, group.world, group.first
        self.chains, self.own, self.writes = CHAINS, chains_of(group), group.rank in (0, 2)
        self.exchange, self.waiting = group.exchange, group.waiting


def tree(chains: range, step: int) -> dict[str, Any]:
    """Different numbers for every chain and step."""

    def values(offset: int, *shape: int) -> torch.Tensor:
        some = torch.arange(float(torch.Size(shape).numel())).reshape(shape)
        return torch.stack([some + 1000 * chain + 100 * step + offset for chain in chains])

    losses = torch.arange(6.0, dtype=torch.float64).reshape(CHAINS, 2) + step
    return {
        "state": State(
            step=torch.tensor(step),
            params={"0.weight": values(1, 2, 3), "0.bias": values(2, 2)},
            mean={"0.weight": values(3, 2, 3), "0.bias": values(4, 2)},
            metric={"second": {"0.weight": values(5, 2, 3).bfloat16()}},
            likelihood={},
            diverged=torch.tensor([-1 - chain for chain in chains]),
        ),
        "collector": {
            "samples": {"0.weight": values(6, 5, 2, 3)},
            "looks": torch.arange(2.0, dtype=torch.float64) + step,
            "losses": losses[chains.start : chains.stop],
            "counts": torch.tensor([step, 2]),
        },
    }


def opened(group: Group, folder: Path, config: dict[str, Any] = CONFIG) -> RunCheckpoint:
    return RunCheckpoint(folder, config, processes=Ranks(group))


def loaded(group: Group, folder: Path) -> int | None:
    """The step of the checkpoint that is found, all of whose numbers are compared."""
    like = pytree.tree_map(torch.zeros_like, tree(chains_of(group), 0))
    found = opened(group, folder).load(like)
    if found is None:
        return None
    step = int(found["state"].step)
    expected = tree(chains_of(group), step)
    same = pytree.tree_map(lambda a, b: a.dtype == b.dtype and torch.equal(a, b), found, expected)
    assert all(pytree.tree_leaves(same)), same
    assert not any(leaf.any() for leaf in pytree.tree_leaves(like)), "``like`` was written to"
    return step


def saved(group: Group, folder: Path, *steps: int) -> RunCheckpoint:
    checkpoint = opened(group, folder)
    for step in steps:
        checkpoint.save(tree(chains_of(group), step))
    return checkpoint


def names_in(folder: Path) -> list[str]:
    """All but the lock of a run that has the folder open."""
    return sorted(p.name for p in folder.iterdir() if p.name != ".lock")


def check_round_trip(group: Group, folder: Path) -> Any:
    here = folder / "round trip"
    before = loaded(group, here)
    saved(group, here, 1, 2, 3)
    group.barrier("saved")
    names, size = names_in(here), (here / NEWEST).stat().st_size
    group.barrier("looked at")  # loading, a rank looks for the others by a file of its own
    return [before, loaded(group, here), names, size]


def fewer(group: Group, world: int, name: str) -> Group | None:
    """The first ``world`` ranks as a group of their own."""
    store = dist.PrefixStore(name, group._store)
    return Group(store, group.rank, world, group.device, 20) if group.rank < world else None


def check_other_numbers_of_ranks(group: Group, folder: Path) -> Any:
    two, one = fewer(group, 2, "two"), fewer(group, 1, "one")
    found = [loaded(g, folder / "round trip") if g else None for g in (two, one)]
    group.barrier("all have read")
    return found


def check_of_one_process(group: Group, folder: Path) -> Any:
    """Written by one process, gone on with by four."""
    here = folder / "single"
    if group.first:
        with contextlib.closing(RunCheckpoint(here, CONFIG)) as single:
            for step in (4, 5):
                single.save(tree(range(CHAINS), step))
    group.barrier("written")
    found = loaded(group, here)
    saved(group, here, 6)
    return [found, loaded(group, here)]


def damage(group: Group, path: Path, place: int) -> None:
    if group.first:
        content = bytearray(path.read_bytes())
        content[place] ^= 4
        path.write_bytes(content)
    group.barrier("damaged")


def check_damaged(group: Group, folder: Path) -> Any:
    """A number of the newest, its header, then everything."""
    here = folder / "damaged"
    saved(group, here, 1, 2)
    found = []
    for place in (-10, 20):
        damage(group, here / NEWEST, place)
        found.append(loaded(group, here))
    return found


def check_two_good_ones_stay(group: Group, folder: Path) -> Any:
    """A damaged checkpoint does not take the name of the good one before it."""
    here = folder / "two good"
    saved(group, here, 1, 2)
    damage(group, here / NEWEST, -10)
    checkpoint = opened(group, here)
    checkpoint.load(tree(chains_of(group), 0))
    checkpoint.save(tree(chains_of(group), 3))
    group.barrier("saved")
    owner = json.loads((here / ".lock").read_text())["pid"] if group.first else None
    checkpoint.close()
    damage(group, here / NEWEST, -10)
    return [loaded(group, here), owner == os.getpid() if group.first else True]


def check_all_damaged(group: Group, folder: Path) -> Any:
    here = folder / "damaged"
    damage(group, here / PREVIOUS, -10)
    return loaded(group, here)


def check_another_run(group: Group, folder: Path) -> Any:
    other = opened(group, folder / "round trip", CONFIG | {"seed": 2, "step_size": 0.1})
    return other.load(tree(chains_of(group), 0))


@contextlib.contextmanager
def no_file_larger_than(size: int) -> Iterator[None]:
    """Writing beyond fails with EFBIG, as a full disk does with ENOSPC."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def check_full_disk_at_one_rank(group: Group, folder: Path) -> Any:
    checkpoint = saved(group, folder / "full", 1)
    with no_file_larger_than(200) if group.rank == 2 else contextlib.nullcontext():
        checkpoint.save(tree(chains_of(group), 2))


def check_after_the_full_disk(group: Group, folder: Path) -> Any:
    here = folder / "full"
    group.barrier("every rank is done with what failed")
    before = names_in(here)
    group.barrier("looked at")
    found = [loaded(group, here)]
    saved(group, here, 3)
    return [*found, loaded(group, here), before, names_in(here)]


def check_no_folder(group: Group, folder: Path) -> Any:
    (folder / "file").touch()
    opened(group, folder / "file" / "checkpoints")


def check_folder_not_shared(group: Group, folder: Path) -> Any:
    opened(group, folder / ("one" if group.rank < 3 else "another"))


def check_left_by_the_dead(group: Group, folder: Path) -> Any:
    """A file without its name, as a rank that dies while writing leaves it."""
    here = folder / "left"
    saved(group, here, 1)
    if group.first:
        (here / f".{NEWEST}.0123.part").write_bytes(os.urandom(99))
    group.barrier("left")
    found = loaded(group, here)
    return [found, names_in(here)]


def check_run_broken_off(group: Group, folder: Path) -> Any:
    """A run of four chains on four ranks, which others go on with."""
    broken_off.break_off(folder / "broken off")
    group.barrier("older ones are removed")
    return names_in(folder / "broken off")


def check_run_in_files(group: Group, folder: Path) -> Any:
    """Samples straight to the disk, broken off and gone on with by the same ranks."""
    place = {"store": folder / "draws", "checkpoint": folder / "with draws"}
    with contextlib.suppress(broken_off.BrokenOffError), broken_off.breaking_off(3):
        broken_off.sample(**place)
    found = broken_off.sample(**place)
    samples = {name: torch.as_tensor(found.samples[name][:, :]) for name in found.samples}
    alone = broken_off.sample(None)
    own = slice(group.rank, group.rank + 1)
    return [name for name, v in samples.items() if not torch.equal(v, alone.samples[name][own])]
