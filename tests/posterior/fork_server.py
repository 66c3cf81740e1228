"""A process that has everything loaded and forks a worker for every line of its input.

Starting an interpreter with torch takes seconds, forking one takes milliseconds, so that a worker
can be killed dozens of times in a test. A worker samples with checkpoints, draws straight to disk,
and saves twice. All the while it notes in a small shared file which phase it is in, and it can kill
itself with SIGKILL when it executes a line of this package for the n-th time in a phase: the kernel
then stops it on the spot, as for any other SIGKILL.

Run as a script; a line is {"folder", "marker", "at": null or ["phase file:line", n]}.
"""

from __future__ import annotations

import collections
import functools
import json
import mmap
import os
import signal
import sys
import traceback
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch

import natural_langevin
import small_run
from known_networks import not_checked_again
from natural_langevin._internal import tensorfile
from natural_langevin.posterior import storage, stores
from natural_langevin.run import checkpoint, loop

PACKAGE = str(Path(natural_langevin.__file__).parent)

#: What a worker is doing: nothing yet, steps, writing a draw, a checkpoint, or a save; or it ended.
PREPARING, SAMPLING, DRAWING, CHECKPOINTING, SAVING, ENDED = phases = "psdcve"


@functools.cache
def name(path: str) -> str:
    return Path(path).name


@functools.cache
def is_watched(path: str, file: str) -> bool:
    """Whether it is a file of the package, and the one whose line is waited for, if any."""
    return path.startswith(PACKAGE) and file in ("", name(path))


class Watch:
    """Knows the phase, notes it where it outlives the process, and counts every line in it."""

    def __init__(self, marker: Path, at: list[Any] | None) -> None:
        with marker.open("r+b") as handle:
            self._shared = mmap.mmap(handle.fileno(), 1)
        self._stack: list[str] = []
        self.lines: collections.Counter[str] = collections.Counter()
        self._at, self._count = at or ["", 0]
        self._tracing = at is not None
        self._file = self._at.partition(" ")[2].partition(":")[0]  # "": lines of all are counted

    def enter(self, phase: str) -> None:
        self._stack.append(phase)
        self._shared[0] = ord(phase)

    def leave(self) -> None:
        self._stack.pop()
        self._shared[0] = ord(self._stack[-1])

    def start(self) -> None:
        if self._tracing:
            sys.settrace(self._calls)

    def _calls(self, frame: FrameType, event: str, arg: Any) -> Any:
        return self._line if is_watched(frame.f_code.co_filename, self._file) else None

    def _line(self, frame: FrameType, event: str, arg: Any) -> Any:
        if event == "line":
            here = f"{self._stack[-1]} {name(frame.f_code.co_filename)}:{frame.f_lineno}"
            self.lines[here] += 1
            if here == self._at and self.lines[here] == self._count:
                os.kill(os.getpid(), signal.SIGKILL)
        return self._line

    def wrap(self, owner: Any, name: str, phase: str) -> None:
        """Calls of ``owner.name`` are this phase."""
        inner = getattr(owner, name)

        def watched(*arguments: Any, **named: Any) -> Any:
            self.enter(phase)
            try:
                return inner(*arguments, **named)
            finally:
                self.leave()

        setattr(owner, name, watched)


def small_pieces(tensor: torch.Tensor, pieces: Any = tensorfile.pieces) -> Any:
    """Files here are tiny; in pieces of 16 bytes there are many moments in the middle of one."""
    for piece in pieces(tensor):
        for start in range(0, len(piece), 16):
            yield piece[start : start + 16]


def work(command: dict[str, Any]) -> dict[str, int]:
    watch = Watch(Path(command["marker"]), command["at"])
    watch.enter(PREPARING)
    watch.wrap(loop, "run", SAMPLING)
    watch.wrap(stores.InFolder, "put", DRAWING)
    watch.wrap(checkpoint.RunCheckpoint, "save", CHECKPOINTING)
    watch.wrap(storage, "write", SAVING)
    tensorfile.pieces = small_pieces
    watch.start()
    folder = Path(command["folder"])
    posterior = sample(folder)
    posterior.save(folder / "draws")  # beside the draws
    posterior.save(folder / "saved")  # a copy
    sys.settrace(None)
    watch.enter(ENDED)
    return watch.lines


def sample(folder: Path) -> natural_langevin.Posterior:
    return small_run.sample(
        steps=24, burn_in=3, thin=2, store=folder / "draws", checkpoint=folder / "run", every=3
    )


def main() -> None:
    torch.set_num_threads(1)
    os.fsync = lambda descriptor: None  # as in tests/conftest.py
    not_checked_again(pytest.MonkeyPatch())  # as there
    small_run.sample(steps=2, burn_in=0, thin=1)  # loads the rest of torch once for all workers
    print("{}", flush=True)
    for line in sys.stdin:
        command = json.loads(line)
        child = os.fork()
        if child == 0:
            try:
                lines = work(command)
                Path(command["folder"], "lines.json").write_text(json.dumps(lines))
                os._exit(0)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
        print(json.dumps({"pid": child}), flush=True)
        print(json.dumps({"status": os.waitpid(child, 0)[1]}), flush=True)


if __name__ == "__main__":
    main()
