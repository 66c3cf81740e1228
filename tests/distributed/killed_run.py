"""Under ``torchrun --max-restarts=3``: each attempt but the last is ended by SIGKILL somewhere.

Two runs, of which one has two chains on each rank, the other all chains on both, with minibatches
shared. When both are done, each is compared with a run that nobody disturbed, bit for bit."""

from __future__ import annotations

import json
import logging
import os
import sys
from pathlib import Path
from typing import Any

import broken_off
from broken_off import Killer

from natural_langevin.distributed.join import join
from natural_langevin.distributed.layout import Layout
from natural_langevin.execution.engine import Engine
from natural_langevin.run.checkpoint import RunCheckpoint

LAYOUTS = {"chains": Layout(chains=2), "data": Layout(data=2)}


def arrange(attempt: int, rank: int, run: str, folder: Path) -> None:
    """Who dies in this attempt, in which run, doing what."""
    note = folder / f"killed-{attempt}"
    match attempt, run, rank:
        case 0, "chains", 1:
            broken_off.wait_to_be_killed(note, draws=3)
        case 1, "chains", 0:
            Killer(RunCheckpoint, "save", call=2, seed=1, note=note)
        case 2, "data", 1:
            Killer(Engine, "run", call=7, seed=2, note=note)


def main(folder: Path) -> None:
    group, attempt = join("cpu"), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    logging.basicConfig(level="INFO", format=f"attempt {attempt} rank {group.rank}: %(message)s")
    found: dict[str, Any] = {"attempts": attempt + 1}
    for name, layout in LAYOUTS.items():
        arrange(attempt, group.rank, name, folder)
        disturbed = broken_off.sample(layout, checkpoint=folder / name)
        undisturbed = broken_off.sample(layout)
        found[name] = broken_off.differences(disturbed, undisturbed)
        disturbed.save(folder / f"{name} saved")
    for name in ("of four", "of one"):  # broken off by other numbers of processes
        taken_up = broken_off.sample(LAYOUTS["chains"], checkpoint=folder / name)
        alone = broken_off.sample(None)
        found[name] = broken_off.differences(taken_up, alone)
    (folder / f"found-{group.rank}.json").write_text(json.dumps(found))
    group.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
