"""Steps until a part is done or its time is over; then it can go on another time."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch

from natural_langevin._internal.trees import copy_tree_
from natural_langevin.execution.engine import Engine
from natural_langevin.sampling.checkpoint import RunCheckpoint
from natural_langevin.sampling.collector import is_kept

#: Steps between two looks at the clock, where no iterate is kept.
LOOK_EVERY = 100


class Collector(Protocol):
    """What takes the kept iterates."""

    def tree(self) -> dict[str, Any]:
        """Everything a checkpoint must hold."""

    def keep(self, state: Any) -> None:
        """Takes an iterate."""


class Ran(NamedTuple):
    """The last state, updates done, and seconds: of the updates, and of this call in all."""

    state: Any
    updates: int
    seconds: float
    wall: float


def advance(
    engine: Engine,
    state: Any,
    collector: Collector,
    *,
    steps: int,
    burn_in: int,
    thin: int,
    folder: Path,
    config: dict[str, Any],
    deadline: float,
    say: Callable[[str], None],
) -> Ran:
    """``steps`` updates, or as many as there is time for until ``deadline`` (``time.monotonic``).

    What is under way then is left in ``folder``, where the same call goes on; a finished part
    leaves nothing there."""
    started = time.monotonic()
    clock = torch.zeros((), dtype=torch.float64)
    tree = {"state": state, "collector": collector.tree(), "clock": clock}
    with contextlib.closing(RunCheckpoint(folder, config)) as saved:
        found = saved.load(tree)
        if found is not None:
            state = found["state"]
            copy_tree_(collector.tree(), found["collector"])
            clock.copy_(found["clock"])
            say(f"goes on at update {int(state.step)}")
        first = done = int(state.step)
        # However little time there is, every call gets somewhat further.
        while done < steps and (done == first or time.monotonic() < deadline):
            stop = min(done + LOOK_EVERY - done % LOOK_EVERY, steps)
            stop = min(stop, done + thin - (done - burn_in) % thin)
            began = time.monotonic()
            state, info = engine.run(state, done, stop - done)
            diverged = int(info.diverged.sum())  # waits for the device
            clock += time.monotonic() - began
            done = stop
            if is_kept(done, burn_in, thin):
                collector.keep(state)
            if done % max(1, steps // 6) == 0:
                loss = float(info.loss[~info.diverged].mean())
                say(f"{done} updates, {float(clock):.1f} s, loss {loss:.4f}, {diverged} diverged")
        if done < steps:
            saved.save({"state": state, "collector": collector.tree(), "clock": clock})
            say(f"time is over at update {done} of {steps}: the same command goes on from there")
    if done == steps:
        shutil.rmtree(folder, ignore_errors=True)
    return Ran(state, done, float(clock), time.monotonic() - started)
