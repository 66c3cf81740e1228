"""Ctrl-C and SIGTERM during a run: no draw is lost."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn


@contextmanager
def deferred(saved: bool, ready: Callable[[], bool]) -> Iterator[list[int]]:
    """The first signal waits until a step is done, with a checkpoint (``saved``) or where Ctrl-C
    comes when draws are ``ready``; the second does not. Those that came are in the list.

    Signals belong to the main thread, and to whoever has taken them over from Python: elsewhere
    nothing is changed."""
    came: list[int] = []
    usual: dict[signal.Signals, Any] = {signal.SIGINT: signal.default_int_handler}
    if saved:
        usual[signal.SIGTERM] = signal.SIG_DFL
    in_main = threading.current_thread() is threading.main_thread()
    taken = [n for n, h in usual.items() if in_main and signal.getsignal(n) is h]

    def notice(number: int, frame: Any) -> None:
        if came or not (saved or ready()):
            end(number)
        came.append(number)

    for number in taken:
        signal.signal(number, notice)
    try:
        yield came
    finally:
        for number in taken:
            signal.signal(number, usual[number])


def end(number: int) -> NoReturn:
    """Ends the program as the signal would have, but closes everything properly first."""
    if number == signal.SIGTERM:
        raise SystemExit(128 + number)
    raise KeyboardInterrupt
