"""What a program that reads a stranger's file must not do, noticed while it reads."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import sys
import time
from collections.abc import Iterator
from typing import Any

SPARE_MEMORY = 1 << 28
FORBIDDEN = ("compile", "exec", "import", "pickle.find_class", "os.system", "subprocess.Popen",
             "os.exec", "os.fork", "os.posix_spawn", "socket.connect", "ctypes.dlopen")  # fmt: skip


class Guard:
    """Notes what a reader must not do. An audit hook stays for good, so it can be switched off."""

    def __init__(self) -> None:
        self.on = False
        self.seen: list[str] = []
        sys.addaudithook(self._hook)

    def _hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.on:
            return
        for_writing = event == "open" and bool(arguments[2] & (os.O_WRONLY | os.O_RDWR))
        if event in FORBIDDEN or for_writing:
            self.seen.append(f"{event} {arguments!r:.200}")


GUARD = Guard()


class HangsError(Exception):
    """The reader waits for something. No OSError, which it might take for an unreadable file."""


@contextlib.contextmanager
def guarded() -> Iterator[None]:
    with open("/proc/self/statm") as file:
        size = int(file.read().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (size + SPARE_MEMORY, before[1]))
    started = time.process_time()
    handler = signal.signal(signal.SIGALRM, _hangs)
    signal.alarm(120)
    GUARD.seen, GUARD.on = [], True
    try:
        yield
    finally:
        GUARD.on = False
        signal.alarm(0)
        signal.signal(signal.SIGALRM, handler)
        resource.setrlimit(resource.RLIMIT_AS, before)
    if GUARD.seen:
        raise AssertionError(f"seen while reading: {GUARD.seen}")
    assert time.process_time() - started < 5, "the reader computes for seconds"


def _hangs(number: int, frame: Any) -> None:
    raise HangsError
