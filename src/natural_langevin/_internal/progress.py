"""Live progress of runs and downloads: a dashboard in a terminal (rich) or a notebook, else lines.

A terminal without rich has one line, about once a second; a pipe or a file gets one every ten
seconds instead of control characters. In a notebook the display is updated in place, and its last
state stays in the saved file.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from natural_langevin._internal import messages

MEBIBYTE = 1 << 20
#: Seconds between two states of a display that is drawn as a whole.
REDRAWN = 0.5


@dataclass(frozen=True)
class Detail:
    """What there is to say beside the amount: in one ``line``, and, where there is room, as a table
    (``head``, ``rows``) with ``notes``."""

    line: str = ""
    head: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    notes: tuple[str, ...] = ()


class Progress:
    """Context manager; ``update`` is cheap enough to call every few steps. ``total`` is in steps,
    or in ``bytes``, which may be unknown (None)."""

    def __init__(
        self, title: str, total: int | None, *, bytes: bool = False, shown: bool = True
    ) -> None:
        self._title, self._total, self._bytes, self.shown = title, total, bytes, shown
        self._started = self._printed = 0.0
        self._last: tuple[int, Callable[[], Detail]] | None = None
        self._display: Display = _Lines(title, total, bytes)

    def __enter__(self) -> Progress:
        self._started = self._printed = time.monotonic()
        if self.shown:
            self._display = _display(self._title, self._total, self._bytes)
        if self._bytes and isinstance(self._display, _Lines):
            self.say(f"{self._total / MEBIBYTE:.1f} MiB" if self._total else "size unknown")
        return self

    def update(self, done: int, detail: Callable[[], Detail] = Detail) -> None:
        """``done`` of the total, and what else there is to say, asked for where it is shown."""
        if not self.shown:
            return
        self._last, now = (done, detail), time.monotonic()
        if now - self._printed >= self._display.every:
            self._printed, self._last = now, None
            self._display.show(done, detail(), self._left(done, now))

    def _left(self, done: int, now: float) -> float | None:
        if self._total is None:
            return None
        return (now - self._started) / max(done, 1) * (self._total - done)

    def say(self, text: str) -> None:
        """What is being done while no step is: shown at once."""
        if self.shown:
            self._display.say(text)

    def __exit__(self, *raised: object) -> None:
        if self._last is not None and not isinstance(self._display, _Lines):
            done, detail = self._last
            self._display.show(done, detail(), self._left(done, time.monotonic()))
        self._display.close()


def _display(title: str, total: int | None, bytes: bool) -> Display:
    kind: type[Display]
    kind = _Terminal if sys.stderr.isatty() else _Notebook if _in_notebook() else _Lines
    try:
        return kind(title, total, bytes)
    except ImportError:
        return _Lines(title, total, bytes)


def _in_notebook() -> bool:
    """Whether this process is a kernel of Jupyter's, which has loaded IPython then."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return hasattr(shell, "kernel")


class Display:
    """Where progress is shown, redrawn at most every ``every`` seconds."""

    every = REDRAWN

    def __init__(self, title: str, total: int | None, bytes: bool) -> None:
        self._title, self._total, self._bytes = title, total, bytes

    def _done(self, done: int) -> str:
        if not self._bytes:
            return f"{self._title}: step {done}/{self._total}"
        of_total = f" of {self._total / MEBIBYTE:.1f}" if self._total else ""
        return f"{self._title}: {done / MEBIBYTE:.1f}{of_total} MiB"

    def show(self, done: int, detail: Detail, left: float | None) -> None:
        """``done``, and the seconds that are ``left``."""
        raise NotImplementedError

    def say(self, text: str) -> None:
        """What is being done while no step is."""
        raise NotImplementedError

    def close(self) -> None:
        """The end."""


class _Lines(Display):
    """One line after the other on stderr, or in the place of the one before."""

    def __init__(self, title: str, total: int | None, bytes: bool) -> None:
        super().__init__(title, total, bytes)
        self.every = 1.0 if sys.stderr.isatty() else 10.0

    def show(self, done: int, detail: Detail, left: float | None) -> None:
        text = f"{self._done(done)}  {detail.line}"
        if left is not None:
            text += f"  {left:.0f} s left"
        end = "\r" if sys.stderr.isatty() else "\n"
        print(text, file=sys.stderr, end=end, flush=True)

    def say(self, text: str) -> None:
        print(f"{self._title}: {text}", file=sys.stderr, flush=True)


class _Terminal(Display):
    """rich's: a bar, and below it the table of a run."""

    def __init__(self, title: str, total: int | None, bytes: bool) -> None:
        from rich import progress as rich
        from rich.console import Console
        from rich.live import Live

        super().__init__(title, total, bytes)
        self._bar = rich.Progress(
            rich.SpinnerColumn(),  # turns while the step is being compiled
            rich.TextColumn("{task.description}", markup=False),
            rich.BarColumn(),
            rich.DownloadColumn() if bytes else rich.MofNCompleteColumn(),
            rich.TextColumn("{task.fields[detail]}", markup=False),
            rich.TimeRemainingColumn(),
        )
        self._task = self._bar.add_task(title, total=total, detail="")
        self._live = Live(self._bar, console=Console(stderr=True), transient=True)
        self._live.start()

    def show(self, done: int, detail: Detail, left: float | None) -> None:
        self._bar.update(self._task, completed=done, detail=detail.line)
        if detail.rows:
            self._live.update(self._page(detail))

    def _page(self, detail: Detail) -> Any:
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        table = Table(*detail.head, box=None, pad_edge=False)
        for row in detail.rows:
            table.add_row(*map(Text, row))
        return Group(self._bar, table, *map(Text, detail.notes))

    def say(self, text: str) -> None:
        self._bar.update(self._task, detail=text)

    def close(self) -> None:
        self._live.stop()


class _Notebook(Display):
    """A display of the cell, replaced whenever there is something new."""

    def __init__(self, title: str, total: int | None, bytes: bool) -> None:
        from IPython import display

        super().__init__(title, total, bytes)
        self._html = display.HTML
        self._handle: Any = display.display(self._html(""), display_id=True)

    def show(self, done: int, detail: Detail, left: float | None) -> None:
        words = [self._done(done), detail.line]
        words += [] if not left else [f"{left:.0f} s left"]
        head = detail.head if detail.rows else ()
        page = messages.shown("  ".join(filter(None, words)), detail.rows, detail.notes, head=head)
        bar = f'<progress value="{done}" max="{self._total}"></progress>' if self._total else ""
        self._handle.update(self._html(page + bar))

    def say(self, text: str) -> None:
        self._handle.update(self._html(messages.shown(f"{self._title}: {text}")))
