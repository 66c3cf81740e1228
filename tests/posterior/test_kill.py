"""SIGKILL at fifty random moments: each time the run goes on, and it ends with the same bits."""

from __future__ import annotations

import collections
import contextlib
import json
import os
import random
import shutil
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

import warm
from natural_langevin import Posterior
from small_run import assert_same, network, the_file

HERE = Path(__file__).parent
NAMES = {
    "p": "preparing", "s": "sampling", "d": "writing a draw", "c": "writing a checkpoint",
    "v": "saving", "e": "ended",
}  # fmt: skip

#: Kills at a random line of the code in a phase, and at a random time of the whole: fifty in all.
BY_LINE, BY_TIME = {"s": 9, "d": 7, "c": 12, "v": 12}, 10


def _kill(pid: int) -> None:
    """A worker that has just ended by itself is none to kill."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


class Workers:
    """Starts workers one after the other by a server that forks them."""

    def __init__(self, folder: Path) -> None:
        (commands, asking), (hearing, answers) = os.pipe(), os.pipe()
        self._server = warm.start(
            [HERE / "fork_server.py"], stdin=commands, stdout=answers, stderr=2,
            environment={"CUDA_VISIBLE_DEVICES": ""},
        )  # fmt: skip
        for theirs in (commands, answers):
            os.close(theirs)
        self._asking, self._hearing = os.fdopen(asking, "w"), os.fdopen(hearing)
        self._marker = folder / "marker"
        self._marker.write_bytes(b"p")
        self._answer()

    def _answer(self) -> Any:
        line = self._hearing.readline()
        assert line, "the server of workers died"
        return json.loads(line)

    def work(self, folder: Path, at: tuple[str, int] | None = None, after: float = -1.0) -> str:
        """One worker, killed at a line or ``after`` some seconds; the phase in which it died."""
        folder.mkdir(exist_ok=True)
        self._marker.write_bytes(b"p")
        command = {"folder": str(folder), "marker": str(self._marker), "at": at}
        self._asking.write(json.dumps(command) + "\n")
        self._asking.flush()
        pid = self._answer()["pid"]
        killer = threading.Timer(after, _kill, (pid,))
        if after >= 0:
            killer.start()
        status = self._answer()["status"]
        killer.cancel()
        if after >= 0:
            killer.join()
        assert status in (0, signal.SIGKILL), "the worker failed: see its traceback above"
        phase = self._marker.read_text()
        assert (phase == "e") == (status == 0) or after >= 0
        return phase if status else "e"

    def close(self) -> None:
        self._asking.close()
        self._server.wait(timeout=30)
        self._hearing.close()


class Undisturbed:
    """What a worker makes that nobody kills, and how many lines and how long it takes."""

    def __init__(self, workers: Workers, folder: Path) -> None:
        assert workers.work(folder, at=("", 0)) == "e"
        self.lines = json.loads((folder / "lines.json").read_text())
        started = time.monotonic()
        assert workers.work(folder.with_name("timed")) == "e"
        self.seconds = time.monotonic() - started
        self.posterior = Posterior.load(folder / "saved", network())
        self.draws = the_file(folder / "draws", "draws").read_bytes()


class Progress:
    """What is on the disk after a kill: it may only grow."""

    def __init__(self, undisturbed: Undisturbed) -> None:
        self._undisturbed = undisturbed
        self.step, self.kept, self._saved = 0, 0, set[str]()

    def check(self, folder: Path) -> None:
        step, kept = newest(folder / "run")
        assert step >= self.step
        assert kept >= self.kept
        self.step, self.kept = step, kept
        if kept:
            draws = load_file(the_file(folder / "draws", "draws"))
            for name, value in self._undisturbed.posterior.samples.items():
                assert torch.equal(draws[name][:, :kept], value[:, :kept]), "a kept sample is lost"
        for place in ("draws", "saved"):
            if place in self._saved or (folder / place / "posterior.json").exists():
                assert_same(self._undisturbed.posterior, Posterior.load(folder / place, network()))
                self._saved.add(place)


def newest(folder: Path) -> tuple[int, int]:
    """Step and count of kept samples of the newest whole checkpoint."""
    for name in ("checkpoint", "previous"):
        try:
            found = load_file(folder / f"{name}.safetensors")
        except (SafetensorError, OSError):
            continue
        step = next(value for key, value in found.items() if key.endswith("step"))
        counts = next(value for key, value in found.items() if key.endswith("['counts']"))
        return int(step), int(counts[0])
    return 0, 0


def finish(workers: Workers, folder: Path, undisturbed: Undisturbed) -> None:
    """The run goes on to its end, and everything is as if nothing had happened."""
    assert workers.work(folder) == "e"
    for place in ("draws", "saved"):
        for memory_map in (False, True):
            found = Posterior.load(folder / place, network(), memory_map=memory_map)
            assert_same(undisturbed.posterior, found)
    names = {path.name for path in (folder / "run").iterdir()}
    assert names == {"checkpoint.safetensors", "previous.safetensors"}
    assert len(list((folder / "draws").iterdir())) == 3  # nothing half-written is left behind
    assert len(list((folder / "saved").iterdir())) == 3
    shutil.rmtree(folder)


Moment = tuple[tuple[str, int] | None, float]


def moments(undisturbed: Undisturbed, generator: random.Random) -> list[Moment]:
    """A line and how often it was executed before, or a number of seconds; in random order.

    Every line of a phase is as likely as any other, however often it is executed."""
    chosen: list[Moment] = []
    for phase, count in BY_LINE.items():
        lines = sorted(line for line in undisturbed.lines if line.startswith(phase))
        for line in generator.sample(lines, count):
            # A resumed run has less to do: mostly one of the first times.
            often = max(1, undisturbed.lines[line] // 4)
            chosen.append(((line, generator.randint(1, often)), -1.0))
    chosen += [(None, generator.uniform(0, undisturbed.seconds)) for _ in range(BY_TIME)]
    generator.shuffle(chosen)
    return chosen


@pytest.fixture
def workers(tmp_path):
    started = Workers(tmp_path)
    yield started
    started.close()


def test_killed_fifty_times_nothing_is_lost(workers, tmp_path, record_property):
    undisturbed = Undisturbed(workers, tmp_path / "undisturbed")
    folder, progress = tmp_path / "killed", Progress(undisturbed)
    died: collections.Counter[str] = collections.Counter()
    endings = 0
    waiting = moments(undisturbed, random.Random(20))
    while waiting:
        at, after = waiting.pop()
        phase = workers.work(folder, at=at, after=after)
        if phase == "e":  # it ended before that moment came: once more, now from the beginning,
            waiting.append((at, 0.9 * after))  # and sooner, where the moment is a time
            finish(workers, folder, undisturbed)
            progress, endings = Progress(undisturbed), endings + 1
            continue
        died[NAMES[phase]] += 1
        progress.check(folder)
    finish(workers, folder, undisturbed)
    print(f"killed {dict(died)}; {endings + 1} runs ended, all with the same bits")
    record_property("cases", died.total())
    assert died.total() == sum(BY_LINE.values()) + BY_TIME == 50
    for phase, count in BY_LINE.items():
        assert died[NAMES[phase]] >= count
