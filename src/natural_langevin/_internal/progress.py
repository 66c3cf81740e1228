"""A live progress line: step, loss, samples kept, time left. Rich when it is there, else stderr."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Any


class Progress:
    """Context manager; ``update`` is cheap enough to call every few steps.

    Without ``rich`` the line is plain and appears about once a second; a pipe or a file gets one
    line every ten seconds instead of control characters.
    """

    def __init__(self, title: str, total: int, *, shown: bool = True) -> None:
        self._title, self._total, self._shown = title, total, shown
        self._rich: Any = None
        self._task: Any = None
        self._started = self._printed = 0.0

    def __enter__(self) -> Progress:
        self._started = self._printed = time.monotonic()
        if self._shown and sys.stderr.isatty():
            self._rich = _rich_progress()
            if self._rich is not None:
                self._rich.start()
                self._task = self._rich.add_task(self._title, total=self._total, detail="")
        return self

    def update(self, done: int, detail: str) -> None:
        """Show that ``done`` of the total are done, and a few words on how it goes."""
        if not self._shown:
            return
        if self._rich is not None:
            self._rich.update(self._task, completed=done, detail=detail)
            return
        now = time.monotonic()
        every = 1.0 if sys.stderr.isatty() else 10.0
        if now - self._printed >= every:
            self._printed = now
            left = (now - self._started) / max(done, 1) * (self._total - done)
            text = f"{self._title}: step {done}/{self._total}  {detail}  {left:.0f} s left"
            end = "\r" if sys.stderr.isatty() else "\n"
            print(text, file=sys.stderr, end=end, flush=True)

    def say(self, text: str) -> None:
        """What is being done while no step is: shown at once."""
        if self._rich is not None:
            self._rich.update(self._task, detail=text)
        elif self._shown:
            print(f"{self._title}: {text}", file=sys.stderr, flush=True)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._rich is not None:
            self._rich.stop()


def _rich_progress() -> Any:
    try:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            SpinnerColumn,
            TextColumn,
            TimeRemainingColumn,
        )
        from rich.progress import Progress as RichProgress
    except ImportError:
        return None
    return RichProgress(
        SpinnerColumn(),  # turns while the step is being compiled
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[detail]}"),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )
