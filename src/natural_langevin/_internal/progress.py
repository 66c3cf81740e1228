"""A live progress line for runs and downloads, on stderr. Rich when it is there, else plain."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

MEBIBYTE = 1 << 20


class Progress:
    """Context manager; ``update`` is cheap enough to call every few steps.

    Without ``rich`` the line is plain and appears about once a second; a pipe or a file gets one
    line every ten seconds instead of control characters. ``total`` is in steps, or in ``bytes``,
    which may be unknown (None).
    """

    def __init__(
        self, title: str, total: int | None, *, bytes: bool = False, shown: bool = True
    ) -> None:
        self._title, self._total, self._bytes, self._shown = title, total, bytes, shown
        self._rich: Any = None
        self._task: Any = None
        self._started = self._printed = 0.0

    def __enter__(self) -> Progress:
        self._started = self._printed = time.monotonic()
        if self._shown and sys.stderr.isatty():
            self._rich = _rich_progress(self._bytes)
            if self._rich is not None:
                self._rich.start()
                self._task = self._rich.add_task(self._title, total=self._total, detail="")
        if self._bytes and self._rich is None:
            self.say(f"{self._total / MEBIBYTE:.1f} MiB" if self._total else "size unknown")
        return self

    def update(self, done: int, detail: Callable[[], str] = str) -> None:
        """``done`` of the total, and what else there is to say, asked for where it is shown."""
        if not self._shown:
            return
        if self._rich is not None:
            self._rich.update(self._task, completed=done, detail=detail())
            return
        now = time.monotonic()
        every = 1.0 if sys.stderr.isatty() else 10.0
        if now - self._printed >= every:
            self._printed = now
            text = f"{self._title}: {self._amount(done)}  {detail()}"
            if self._total is not None:
                left = (now - self._started) / max(done, 1) * (self._total - done)
                text += f"  {left:.0f} s left"
            end = "\r" if sys.stderr.isatty() else "\n"
            print(text, file=sys.stderr, end=end, flush=True)

    def _amount(self, done: int) -> str:
        if not self._bytes:
            return f"step {done}/{self._total}"
        of_total = f" of {self._total / MEBIBYTE:.1f}" if self._total else ""
        return f"{done / MEBIBYTE:.1f}{of_total} MiB"

    def say(self, text: str) -> None:
        """What is being done while no step is: shown at once."""
        if self._rich is not None:
            self._rich.update(self._task, detail=text)
        elif self._shown:
            print(f"{self._title}: {text}", file=sys.stderr, flush=True)

    def __exit__(self, *raised: object) -> None:
        if self._rich is not None:
            self._rich.stop()


def _rich_progress(bytes: bool) -> Any:
    try:
        from rich import progress as rich
        from rich.console import Console
    except ImportError:
        return None
    return rich.Progress(
        rich.SpinnerColumn(),  # turns while the step is being compiled
        rich.TextColumn("{task.description}"),
        rich.BarColumn(),
        rich.DownloadColumn() if bytes else rich.MofNCompleteColumn(),
        rich.TextColumn("{task.fields[detail]}"),
        rich.TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )
