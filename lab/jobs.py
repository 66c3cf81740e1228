"""Rows of a study in processes of their own: side by side with one thread each, or one that is told
when its turn is."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from typing import Any, TypeVar

import torch

T, R = TypeVar("T"), TypeVar("R")


def side_by_side(work: Callable[[T], R], items: Iterable[T], jobs: int) -> Iterator[R]:
    """``work(item)`` of every item, as they are done; with ``jobs=1`` in this process, in order.

    ``work`` and the items are pickled: a function of a module, or a ``functools.partial`` of one.
    """
    if jobs == 1:
        yield from map(work, items)
        return
    context = get_context("spawn")
    with ProcessPoolExecutor(
        jobs, mp_context=context, initializer=torch.set_num_threads, initargs=(1,)
    ) as pool:
        for done in as_completed([pool.submit(work, item) for item in items]):
            yield done.result()


def started(module: str, words: Sequence[str]) -> subprocess.Popen[str]:
    """``python -m module`` with these words, which may import and then wait for a line."""
    pipe = subprocess.PIPE
    command = [sys.executable, "-m", module, *words]
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)


class NoAnswerError(RuntimeError):
    """A process that ended without an answer, or took too long."""


def answer(process: subprocess.Popen[str], limit: float | None = None) -> dict[str, Any]:
    """The JSON of the last line that it prints, within ``limit`` seconds from now on, when it gets
    the line that it may wait for. What it says else goes to stderr."""
    try:
        out, err = process.communicate("now\n", timeout=limit)
    except subprocess.TimeoutExpired:
        dismiss(process)
        raise NoAnswerError(f"no answer in {limit:.0f} s") from None
    sys.stderr.write(err)
    lines = out.strip().splitlines()
    if process.returncode or not lines:
        why = (err.strip().splitlines() or ["no output"])[-1]
        raise NoAnswerError(f"exit {process.returncode}: {why}")
    found: dict[str, Any] = json.loads(lines[-1])
    return found


def dismiss(process: subprocess.Popen[str]) -> None:
    """Ends a process that is not needed any more."""
    process.kill()
    process.communicate()
