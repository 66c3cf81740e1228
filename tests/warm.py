"""Scripts in processes of their own that need not load torch: forked from one which has done so.

    process = warm.start([script, "argument"], stdin=one, stdout=two, stderr=three)  # open files
    process.wait(timeout=60)

    printed = warm.run([script, "argument"])

Starting an interpreter with torch and its compiler takes seconds, forking one takes milliseconds.
All workers of a test run share one server, which the first of them to need it starts and which ends
with the last. It has imported ``LOADED`` and done nothing else, so that a script finds what a fresh
interpreter would show it after the same imports.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import functools
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

#: What scripts of several tests load. Exchanges between processes bring dynamo.
LOADED = (
    "torch", "torch._dynamo", "torch._inductor.compile_fx", "torch.distributed.run",
    "torch.distributed.fsdp", "natural_langevin.cli.app", "sklearn.datasets", "pytest",
    "typer.testing",
)  # fmt: skip
SOURCE = Path(__file__).parents[1] / "src"


# The server ---------------------------------------------------------------------------------------


class Server:
    """Forks whenever it is asked, and tells when and how the processes end."""

    def __init__(self, listening: socket.socket, path: Path) -> None:
        self._listening, self._path = listening, path
        self._open: dict[int, socket.socket] = {}  # by descriptor: who may still ask
        self._asked: dict[int, socket.socket] = {}  # by process: who is waiting for its end
        self._wake, wake = os.pipe()
        os.set_blocking(wake, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)

    def serve(self) -> dict[str, Any] | None:
        """Returns None when nobody is left to ask; in a forked process, what it is to do."""
        while True:
            watched = [self._listening, self._wake, *self._open]
            for ready in select.select(watched, [], [])[0]:
                if ready is self._listening:
                    connection, _ = self._listening.accept()
                    self._open[connection.fileno()] = connection
                elif ready == self._wake:
                    os.read(self._wake, 1024)
                    self._tell()
                elif (request := self._request(ready)) is not None:
                    return request
            if not self._open and self._withdrawn():
                return None

    def _withdrawn(self) -> bool:
        """No longer to be found, unless somebody is just about to ask."""
        with _locked(self._path):
            if select.select([self._listening], [], [], 0)[0]:
                return False
            self._path.unlink()
            _lock_of(self._path).unlink()
            return True

    def _request(self, descriptor: int) -> dict[str, Any] | None:
        connection = self._open[descriptor]
        text, files, _, _ = socket.recv_fds(connection, 1 << 20, 3)
        if not text:
            self._open.pop(descriptor).close()
            self._asked = {pid: who for pid, who in self._asked.items() if who is not connection}
            return None
        child = os.fork()
        if child == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for one in (self._listening, *self._open.values()):
                one.close()
            return {**json.loads(text), "files": files}
        for file in files:
            os.close(file)
        self._asked[child] = connection
        connection.sendall(f"{child}\n".encode())
        return None

    def _tell(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                who = self._asked.pop(ended[0], None)
                with contextlib.suppress(OSError):
                    if who is not None:
                        who.sendall(f"{os.waitstatus_to_exitcode(ended[1])}\n".encode())


def do(request: dict[str, Any]) -> NoReturn:
    """In the forked process: the script, as ``python script arguments`` would."""
    os.setsid()
    for target, file in enumerate(request["files"]):
        os.dup2(file, target)
        os.close(file)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    script, *arguments = request["words"]
    sys.argv = [script, *arguments]
    own = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:0] = [str(Path(script).parent), *filter(None, own)]
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.fsync = lambda descriptor: None  # as in tests/conftest.py
    code: Any = 0
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as end:
        code = end.code
    except BaseException:
        traceback.print_exc()
        code = 1
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    # Taking the modules apart, as an interpreter does at its end, takes most of a second.
    os._exit(code if isinstance(code, int) else int(code is not None))


def main(path: Path) -> None:
    if os.fork():  # nobody's child: it may live longer than the worker that starts it
        os._exit(0)
    new = path.with_suffix(".new")
    new.unlink(missing_ok=True)
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(new))
    for module in LOADED:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()
    listening.listen(64)
    new.rename(path)  # from now on it can be found
    request = Server(listening, path).serve()
    if request is not None:
        do(request)
    os._exit(0)  # see the end of ``do``


# Those who ask ------------------------------------------------------------------------------------


def _address() -> Path:
    """The same for all workers of a test run, and for no other run."""
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID", str(os.getpid()))
    return Path(tempfile.gettempdir()) / f"natural-langevin-tests-{os.getuid()}-{run[:16]}"


def _lock_of(path: Path) -> Path:
    return path.with_suffix(".lock")


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Servers begin and end one at a time."""
    with _lock_of(path).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _connected() -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.connect(str(_address()))
    except OSError:
        connection.close()
        raise
    return connection


def _start_server() -> None:
    _address().unlink(missing_ok=True)
    here = Path(__file__)  # of lab, too, which lies beside tests
    paths = [str(SOURCE), str(here.parent), str(here.parents[1]), os.environ.get("PYTHONPATH", "")]
    settings = {
        "PYTHONPATH": os.pathsep.join(p for p in paths if p),
        "OMP_NUM_THREADS": "1",
        "TORCHINDUCTOR_COMPILE_THREADS": "1",  # no pool of compiling processes
    }
    subprocess.run(
        [sys.executable, __file__, str(_address())],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
        env=os.environ | settings,
        check=True,
    )
    deadline = time.monotonic() + 300
    while not _address().exists():
        assert time.monotonic() < deadline, "the server of processes did not start"
        time.sleep(0.02)


@functools.cache
def _kept() -> socket.socket:
    """A connection for as long as this process lives: starts the server, where there is none."""
    with _locked(_address()):
        try:
            connection = _connected()
        except OSError:
            _start_server()
            connection = _connected()
    atexit.register(connection.close)
    return connection


class Process:
    """A script under way, with the methods of ``subprocess.Popen`` that tests need."""

    def __init__(self, words: Sequence[str], environment: dict[str, str], files: list[int]) -> None:
        _kept()
        self._connection = _connected()
        self._answers = self._connection.makefile("r")
        request = {"words": words, "environment": environment, "folder": os.getcwd()}
        socket.send_fds(self._connection, [json.dumps(request).encode()], files)
        self.pid = int(self._answers.readline())
        self.returncode: int | None = None

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code, negative for a signal; ``subprocess.TimeoutExpired``."""
        if self.returncode is None:
            if not select.select([self._connection], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired("a forked script", timeout or 0.0)
            self.returncode = int(self._answers.readline())
            self._answers.close()
            self._connection.close()
        return self.returncode

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.wait(0)
        return None

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)


def start(
    words: Sequence[str | Path],
    *,
    stdin: Any,
    stdout: Any,
    stderr: Any,
    environment: dict[str, str] | None = None,
) -> Process:
    """``python words...``, a script and its arguments; files are open ones, or their numbers. It
    finds the package and the modules of ``tests``."""
    files = [file if isinstance(file, int) else file.fileno() for file in (stdin, stdout, stderr)]
    whole = {**os.environ, "OMP_NUM_THREADS": "1", **(environment or {})}
    return Process([str(word) for word in words], whole, files)


def run(words: Sequence[str | Path], environment: dict[str, str] | None = None) -> str:
    """What it prints; AssertionError with what it said where it fails."""
    with (
        Path(os.devnull).open() as nothing,
        tempfile.TemporaryFile("w+") as out,
        tempfile.TemporaryFile("w+") as said,
    ):
        files = {"stdin": nothing, "stdout": out, "stderr": said}
        code = start(words, environment=environment, **files).wait()
        texts = []
        for file in (out, said):
            file.seek(0)
            texts.append(file.read())
    assert code == 0, texts[1]
    return texts[0]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
