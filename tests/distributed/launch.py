"""Real processes for tests: starts ``torchrun`` on this machine, watches it, and ends it for sure.

One launch costs seconds, so it runs many checks. A module of checks holds functions
``check_NAME(group, folder)``, which every rank calls in the same order:

    found = launch.checks("group_checks", ["agreeing", "one_rank_raises"], ranks=2, folder=tmp_path)
    found["agreeing"][rank]          # Outcome(value=what it returned, error=text of what it raised)

A script of one's own:

    with launch.started(script, folder, ranks=2, max_restarts=3) as running:
        print(running.finish(timeout=60))
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import natural_langevin
import warm

HERE = Path(__file__).parent
SOURCE = Path(natural_langevin.__file__).parent.parent


@dataclass(frozen=True)
class Outcome:
    """What one check did on one rank."""

    value: Any = None
    kind: str = ""  # the name of the exception's class
    error: str | None = None
    seconds: float = 0.0


class Running:
    """A ``torchrun`` under way."""

    def __init__(self, command: Sequence[str], folder: Path, environment: dict[str, str]) -> None:
        self.folder, self._log = folder, folder / f"torchrun-{secrets.token_hex(8)}.log"
        with self._log.open("wb") as log, Path(os.devnull).open("rb") as nothing:
            self._process = warm.start(
                command, environment=environment, stdin=nothing, stdout=log, stderr=log
            )

    @property
    def output(self) -> str:
        return self._log.read_text(errors="replace")

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def finish(self, timeout: float, *, succeeds: bool | None = True) -> str:
        """Waits for the end and gives all output; AssertionError when it ends otherwise."""
        try:
            code = self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.end()
            raise AssertionError(f"not done after {timeout:g} s:\n{self.output}") from None
        if succeeds is not None:
            assert (code == 0) == succeeds, f"torchrun ended with {code}:\n{self.output}"
        return self.output

    def end(self) -> None:
        """Nothing of this launch is left afterwards. The agent first: it would restart workers."""
        if self.running:
            self._process.kill()
        self._process.wait()
        for pid in self._processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _processes(self) -> Iterator[int]:
        """Those of the session that the agent began, whoever their parent is by now."""
        for path in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                _, _, _, session = path.read_text().rpartition(")")[2].split()[:4]
                if int(session) == self._process.pid:
                    yield int(path.parent.name)


@contextlib.contextmanager
def started(
    script: Path,
    folder: Path,
    *arguments: str,
    ranks: int,
    max_restarts: int = 0,
    environment: dict[str, str] | None = None,
    imported: Sequence[str] = (),
) -> Iterator[Running]:
    """``torchrun --standalone --nproc-per-node RANKS script folder arguments``, under way.

    Workers are forked from one that has ``imported`` modules, and which is forked itself."""
    command = [
        *(str(HERE / "forked.py"), ",".join(imported)),
        *("--standalone", f"--nproc-per-node={ranks}", f"--max-restarts={max_restarts}"),
        *(str(script), str(folder), *arguments),
    ]
    paths = [str(SOURCE), str(HERE.parent), str(HERE), os.environ.get("PYTHONPATH", "")]
    variables = {
        k: v
        for k, v in os.environ.items()
        if k not in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
    } | {
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(p for p in paths if p),
        "PYTHONUNBUFFERED": "1",
        "TORCHINDUCTOR_COMPILE_THREADS": "1",  # no pool of compiling processes, which also import
    }
    running = Running(command, folder, variables | (environment or {}))
    try:
        yield running
    finally:
        running.end()


def checks(
    module: str,
    names: Sequence[str],
    *,
    ranks: int,
    folder: Path,
    timeout: float = 300,
    environment: dict[str, str] | None = None,
    imported: Sequence[str] = (),
) -> dict[str, list[Outcome]]:
    """Runs ``check_NAME`` of a module in tests/distributed on every rank: outcomes by rank."""
    with started(
        *(Path(__file__), folder, module, *names),
        ranks=ranks,
        environment=environment,
        imported=imported,
    ) as running:
        output = running.finish(timeout, succeeds=None)
    by_rank = []
    for rank in range(ranks):
        path = folder / f"outcomes-{rank}.json"
        assert path.exists(), f"rank {rank} did not report:\n{output}"
        by_rank.append(json.loads(path.read_text()))
    for rank, found in enumerate(by_rank):
        assert list(found) == list(names), f"rank {rank} reports {list(found)}:\n{output}"
    return {name: [Outcome(**found[name]) for found in by_rank] for name in names}


def main(folder: Path, module: str, names: Sequence[str]) -> None:
    """In a worker: all checks in order, each outcome written down as soon as it is there."""
    from natural_langevin.distributed.join import join

    group = join()
    available = importlib.import_module(module)
    outcomes: dict[str, dict[str, Any]] = {}
    for name in names:
        started_at = time.monotonic()
        try:
            outcome: dict[str, Any] = {"value": getattr(available, f"check_{name}")(group, folder)}
        except Exception as error:
            outcome = {"kind": type(error).__name__, "error": str(error)}
        outcomes[name] = outcome | {"seconds": time.monotonic() - started_at}
        path = folder / f"outcomes-{group.rank}.json"
        path.with_suffix(".part").write_text(json.dumps(outcomes))
        path.with_suffix(".part").replace(path)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:])
