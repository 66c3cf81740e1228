"""A time limit for a connection that is alive and gives nothing: every drip resets a timeout."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


class OutOfPatienceError(TimeoutError):
    """Nothing has arrived for too long."""


class Patience:
    """Runs an action in a thread and leaves it where ``renew`` is not called for ``seconds``.

    The thread waits in the system, which only the end of its connection wakes: that of the newest
    of ``answers`` (of requests), where there is one already."""

    def __init__(self, answers: list[Any], seconds: float) -> None:
        self._answers, self._seconds = answers, seconds
        self._renewed, self._done = threading.Event(), threading.Event()

    def renew(self) -> None:
        """Says that something has arrived: the time starts anew."""
        self._renewed.set()

    def run(self, action: Callable[[], T]) -> T:
        """What the action returns or raises; OutOfPatienceError if nothing arrives for too long."""
        found: list[T] = []
        raised: list[BaseException] = []

        def work() -> None:
            try:
                found.append(action())
            except BaseException as error:
                raised.append(error)
            finally:
                self._done.set()
                self._renewed.set()

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        try:
            while not self._done.is_set():
                self._renewed.clear()
                if not self._done.is_set() and not self._renewed.wait(self._seconds):
                    raise OutOfPatienceError
        except BaseException:  # Ctrl-C too
            self._hang_up()
            thread.join(1.0)
            raise
        thread.join()
        if raised:
            raise raised[0]
        return found[0]

    def _hang_up(self) -> None:
        for answer in self._answers[-1:]:
            with (
                contextlib.suppress(OSError, ValueError, AttributeError),
                socket.socket(fileno=os.dup(answer.raw.fileno())) as connection,
            ):
                connection.shutdown(socket.SHUT_RDWR)
