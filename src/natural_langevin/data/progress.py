"""How far a download is: a bar when rich is installed, plain lines on stderr otherwise."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator

_MEBIBYTE = 1 << 20


@contextlib.contextmanager
def download_progress(
    description: str, *, total: int | None = None
) -> Iterator[Callable[[int], None]]:
    """Yield a function to be called with the number of bytes that just arrived."""
    try:
        import rich.console
        import rich.progress
    except ImportError:
        yield _plain_lines(description, total)
        return
    columns = (
        rich.progress.TextColumn("{task.description}"),
        rich.progress.BarColumn(),
        rich.progress.DownloadColumn(),
        rich.progress.TransferSpeedColumn(),
    )
    with rich.progress.Progress(*columns, console=rich.console.Console(stderr=True)) as bar:
        task = bar.add_task(description, total=total)
        yield lambda count: bar.advance(task, count)


def _plain_lines(description: str, total: int | None) -> Callable[[int], None]:
    """One line per quarter of a known total, per 4 MiB of an unknown one."""
    stride = max(1, total // 4 if total else 4 * _MEBIBYTE)
    done = 0

    def advance(count: int) -> None:
        nonlocal done
        before, done = done, done + count
        if before // stride != done // stride:
            of_total = f" of {total / _MEBIBYTE:.1f}" if total else ""
            print(f"{description}: {done / _MEBIBYTE:.1f}{of_total} MiB", file=sys.stderr)

    return advance
