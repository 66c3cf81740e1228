"""Interleaved, repeated timing: every repeat visits all contenders, starting one further each time.

Contenders share the machine's moods that way: a slow second hits all of them alike, and nobody
always follows the same neighbour. A figure is the median over repeats, with its spread. CPU time,
of all threads, is noted too: on a machine that others use as well it is the steadier of the two.
"""

from __future__ import annotations

import gc
import resource
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch

from lab.gpu import synchronise
from lab.speed.contender import Contender, Ready, Status, Unavailable
from lab.speed.problems import Problem

T = TypeVar("T")
Say = Callable[[str], None]


@dataclass
class Row:
    """A contender's place in the results."""

    contender: Contender
    status: Status = "measured"
    reason: str = ""
    ready: Ready | None = None
    descent_seconds: float = 0.0
    block: int = 0  # steps per repeat
    times: list[float] = field(default_factory=list)  # microseconds per chain-step
    cpu: list[float] = field(default_factory=list)  # the same in CPU time of all threads
    faults: list[float] = field(default_factory=list)  # page faults per step


def rotated(items: Sequence[T], by: int) -> list[T]:
    """
    >>> rotated("abc", 1)
    ['b', 'c', 'a']
    """
    by %= max(1, len(items))
    return [*items[by:], *items[:by]]


def make_ready(problem: Problem, contenders: Sequence[Contender], say: Say) -> list[Row]:
    """Builds everybody and takes the first steps, which compile."""
    rows = []
    for contender in contenders:
        row = Row(contender)
        rows.append(row)
        started = time.perf_counter()
        try:
            row.ready = contender.build(problem, contender.chains)
            for _ in range(3):  # compile, capture, and once more
                row.ready.advance(row.ready.multiple)
            synchronise(problem.device)
        except Unavailable as answer:
            row.status, row.reason = answer.status, answer.reason
        except Exception as error:  # one contender's trouble must not end the others' run
            row.status, row.reason = "failed", f"{type(error).__name__}: {error}"[:300]
        if row.status != "measured":
            row.ready = None
        row.descent_seconds = time.perf_counter() - started
        what = row.reason[:100] if row.reason else f"ready in {row.descent_seconds:.1f} s"
        say(f"{problem.name}: {contender.label}: {what}")
    return rows


def interleave(
    problem: Problem, rows: Sequence[Row], *, repeats: int, seconds: float, say: Say
) -> list[list[str]]:
    """Fills in the rows' measurements, in blocks of about ``seconds``; returns the orders."""
    running = [row for row in rows if row.ready is not None]
    for row in running:
        row.block = _block(problem.device, row, seconds)
    orders = []
    for repeat in range(repeats):
        order = rotated(running, repeat)
        gc.collect()  # what one contender left behind is not for the next to clear
        orders.append([row.contender.label for row in order])
        for row in order:
            elapsed, cpu, faults = timed(problem.device, row, row.block)
            row.times.append(1e6 * elapsed / (row.block * row.contender.chains))
            row.cpu.append(1e6 * cpu / (row.block * row.contender.chains))
            row.faults.append(faults / row.block)
        say(f"{problem.name}: repeat {repeat + 1} of {repeats}")
    return orders


def timed(device: torch.device, row: Row, count: int) -> tuple[float, float, int]:
    """Seconds, CPU seconds and page faults (minor) of this process for that many steps."""
    assert row.ready is not None
    synchronise(device)
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    started, cpu = time.perf_counter(), time.process_time()
    row.ready.advance(count)
    synchronise(device)
    elapsed, cpu = time.perf_counter() - started, time.process_time() - cpu
    return elapsed, cpu, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults


def _block(device: torch.device, row: Row, seconds: float) -> int:
    """Steps that take about ``seconds``, found by doubling: a first step is no guide."""
    assert row.ready is not None
    multiple = row.ready.multiple
    count = multiple
    while True:
        elapsed, _, _ = timed(device, row, count)
        if elapsed >= seconds / 4 or count >= 5_000:
            break
        count *= 2
    wanted = min(10_000.0, seconds * count / elapsed)
    return max(1, round(wanted / multiple)) * multiple


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median, quartiles and extremes.

    >>> spread([1.0, 2.0, 3.0, 4.0, 9.0])
    {'median': 3.0, 'min': 1.0, 'q1': 2.0, 'q3': 4.0, 'max': 9.0}
    """
    if len(values) > 1:
        q1, _, q3 = statistics.quantiles(values, n=4, method="inclusive")
    else:
        q1 = q3 = values[0]
    middle = statistics.median(values)
    return {"median": middle, "min": min(values), "q1": q1, "q3": q3, "max": max(values)}


def summary(row: Row, reference: Row | None) -> dict[str, Any]:
    """The row as JSON. ``ratio`` is the quotient of medians; ``ratio_spread`` that of repeats."""
    contender = row.contender
    out: dict[str, Any] = {
        "name": contender.name, "chains": contender.chains, "description": contender.description,
        "ours": contender.ours, "status": row.status, "reason": row.reason,
    }  # fmt: skip
    if not row.times:
        return out
    assert row.ready is not None
    out |= {
        "descent_seconds": row.descent_seconds,
        "block": row.block,
        "microseconds": row.times,
        "microseconds_per_chain_step": spread(row.times),
        "page_faults_per_step": spread(row.faults),
        "cpu_microseconds_per_chain_step": spread(row.cpu),
        "note": row.ready.check(),
        "way": row.ready.way(),
    }
    if reference is not None and reference.times:
        ratios = [a / b for a, b in zip(row.times, reference.times, strict=True)]
        out["ratio"] = statistics.median(row.times) / statistics.median(reference.times)
        out["ratio_spread"] = spread(ratios)
        ratios = [a / max(b, 1e-9) for a, b in zip(row.cpu, reference.cpu, strict=True)]
        out["cpu_ratio_spread"] = spread(ratios)
    return out
