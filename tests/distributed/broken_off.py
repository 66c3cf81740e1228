"""A small run that can be broken off, and what is left of it compared bit for bit."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import torch

import natural_langevin
import small_run
from natural_langevin import Posterior
from natural_langevin.run.collector import SampleCollector

CHAINS, EVERY = 4, 3
PACKAGE = str(Path(natural_langevin.__file__).parent)


class BrokenOffError(Exception):
    """In the place of a power cut."""


def sample(parallel: Any = "auto", **settings: Any) -> Posterior:
    """Four chains, eight draws of each, a checkpoint after every third step."""
    if "checkpoint" in settings:
        settings["every"] = EVERY
    options = {"steps": 20, "burn_in": 4, "thin": 2} | settings
    return small_run.sample(sampler={"chains": CHAINS, "parallel": parallel}, **options)


@contextmanager
def breaking_off(draws: int) -> Iterator[None]:
    """The run ends after so many draws, on every rank."""
    keep = SampleCollector.keep

    def counted(self: SampleCollector, state: Any) -> None:
        keep(self, state)
        if self.kept == draws:
            raise BrokenOffError

    SampleCollector.keep = counted  # type: ignore[method-assign]
    try:
        yield
    finally:
        SampleCollector.keep = keep  # type: ignore[method-assign]


def break_off(folder: Path, draws: int = 3, parallel: Any = "auto") -> None:
    try:
        with breaking_off(draws):
            sample(parallel, checkpoint=folder)
    except BrokenOffError:
        return
    raise AssertionError("the run was not broken off")


def differences(one: Posterior, other: Posterior) -> list[str]:
    """What is not the same bit for bit; ``one`` may have some of the other's chains only."""
    own = one.processes.own
    rows = slice(own.start, own.stop)
    if other.processes.world > 1:
        rows = slice(None)
    pairs = {
        f"{group} {name}": (value, getattr(other, group)[name][rows])
        for group in ("samples", "mean", "last")
        for name, value in getattr(one, group).items()
    }
    pairs |= {name: (getattr(one, name), getattr(other, name)) for name in ("trace", "diverged")}
    return [name for name, (ours, theirs) in pairs.items() if not torch.equal(ours, theirs)]


class Killer:
    """Counts the lines of the package that a method executes, and in its n-th call (or the first
    after it that is long enough) sends SIGKILL to this very process, at a line that a random number
    chose: the kernel ends it on the spot."""

    def __init__(self, owner: Any, name: str, *, call: int, seed: int, note: Path) -> None:
        self._call, self._fraction, self._note = call, random.Random(seed).random(), note
        self._calls = self._lines = self._last = 0
        method = getattr(owner, name)

        def watched(*arguments: Any, **named: Any) -> Any:
            self._calls, self._last, self._lines = self._calls + 1, self._lines, 0
            before = sys.gettrace()
            sys.settrace(self._enter)
            try:
                return method(*arguments, **named)
            finally:
                sys.settrace(before)

        setattr(owner, name, watched)

    def _enter(self, frame: FrameType, event: str, argument: Any) -> Any:
        return self._line if frame.f_code.co_filename.startswith(PACKAGE) else None

    def _line(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "line":
            self._lines += 1
            if self._calls >= self._call and self._lines == 1 + int(self._fraction * self._last):
                where = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
                self._note.write_text(f"{self._lines} of {self._last}: {where}")
                os.kill(os.getpid(), signal.SIGKILL)
        return self._line


def wait_to_be_killed(note: Path, draws: int) -> None:
    """Stands still after so many draws, until somebody else sends SIGKILL."""
    keep = SampleCollector.keep

    def still(self: SampleCollector, state: Any) -> None:
        keep(self, state)
        if self.kept == draws:
            note.write_text(str(os.getpid()))
            time.sleep(3600)

    SampleCollector.keep = still  # type: ignore[method-assign]
