"""Processes that want the same folder at the same time, forked from one that has all loaded.

Run as a script with a folder: every scenario is played once, and what came of it is printed as one
JSON object {scenario: [what each process returned, or the error it got]}."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import small_run
from natural_langevin import Posterior
from natural_langevin._internal.folder_lock import FolderLock
from natural_langevin.run.collector import SampleCollector


def start(action: Callable[[], Any], answer: Path) -> int:
    """A process that does it and writes down what came of it; its id."""
    child = os.fork()
    if child:
        return child
    try:
        found = action()
    except BaseException as error:
        found = f"{type(error).__name__}: {error}"
    answer.with_suffix(".part").write_text(json.dumps(found))
    answer.with_suffix(".part").rename(answer)
    os._exit(0)


def at_once(folder: Path, *actions: Callable[[], Any]) -> list[Any]:
    """The answers of processes that begin within a tenth of a second of each other."""
    answers = [folder / f"answer-{k}" for k in range(len(actions))]
    children = []
    for action, answer in zip(actions, answers, strict=True):
        children.append(start(action, answer))
        time.sleep(0.1)
    for child in children:
        os.waitpid(child, 0)
    return [json.loads(answer.read_text()) for answer in answers]


def one_after_the_other(
    folder: Path, room: Path, first: Callable[[], Any], second: Callable[[], Any]
) -> list[Any]:
    """The second begins when the first has the room, which keeps it until the second is answered:
    they overlap at any pace of the machine."""
    answers, keep = [folder / "answer-first", folder / "answer-second"], SampleCollector.keep
    for answer in answers:
        answer.unlink(missing_ok=True)

    def kept(self: SampleCollector, state: Any) -> None:
        wait_for(answers[1])
        keep(self, state)

    SampleCollector.keep = kept  # type: ignore[method-assign]
    children = [start(first, answers[0])]
    wait_for(room / ".lock")
    SampleCollector.keep = keep  # type: ignore[method-assign]
    children.append(start(second, answers[1]))
    for child in children:
        os.waitpid(child, 0)
    return [json.loads(answer.read_text()) for answer in answers]


def wait_for(file: Path) -> None:
    """Until it has content; a minute at most, so that a failure is seen and not waited for."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not (file.exists() and file.read_text()):
        time.sleep(0.001)


def bits(posterior: Posterior) -> float:
    return float(sum(v.double().sum() for v in posterior.samples.values()))


def sampling(seed: int = 5, **where: Any) -> Callable[[], Any]:
    return lambda: bits(small_run.sample(sampler={"seed": seed}, **where))


def saves(posterior: Posterior, folder: Path) -> str:
    for _ in range(15):
        posterior.save(folder)
    return "saved"


def loads(folder: Path) -> int:
    while not (folder / "posterior.json").exists():
        time.sleep(0.001)
    return len({bits(Posterior.load(folder, small_run.network())) for _ in range(40)})


def killed_holder(folder: Path) -> list[Any]:
    """Its child lives on; the folder is free when the holder is dead."""
    note = folder / "child"

    def hold() -> None:
        lock = FolderLock(folder, "being killed")
        child = os.fork()
        if child == 0:
            time.sleep(30)
            os._exit(0)
        note.write_text(str(child))
        time.sleep(30)
        lock.release()

    holder = start(hold, folder / "never")
    while not (note.exists() and note.read_text()):
        time.sleep(0.01)
    refused = at_once(folder, lambda: FolderLock(folder, "too early").release())
    os.kill(holder, signal.SIGKILL)
    os.waitpid(holder, 0)
    taken = at_once(folder, lambda: FolderLock(folder, "in time").release())
    os.kill(int(note.read_text()), signal.SIGKILL)
    return [holder, *refused, *taken]


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    one, other = small_run.sample(), small_run.sample(sampler={"seed": 6})
    found: dict[str, Any] = {"undisturbed": bits(one)}
    rooms = {name: folder / name for name in ("store", "seeds", "checkpoint", "saves", "killed")}
    for room in rooms.values():
        room.mkdir()
    found["saves"] = at_once(
        folder,
        lambda: saves(one, rooms["saves"]),
        lambda: saves(other, rooms["saves"]),
        lambda: loads(rooms["saves"]),
    )
    found["left"] = sorted(path.suffix for path in rooms["saves"].iterdir())
    found["loaded"] = bits(Posterior.load(rooms["saves"], small_run.network()))
    found["either"] = [bits(one), bits(other)]
    found["killed"] = killed_holder(rooms["killed"])
    same = sampling(store=rooms["store"])
    found["store"] = one_after_the_other(folder, rooms["store"], same, same)
    found["again"] = at_once(folder, same)
    of_seeds = [sampling(seed, store=rooms["seeds"]) for seed in (5, 6)]
    found["seeds"] = one_after_the_other(folder, rooms["seeds"], *of_seeds)
    same = sampling(checkpoint=rooms["checkpoint"])
    found["checkpoint"] = one_after_the_other(folder, rooms["checkpoint"], same, same)
    print(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
