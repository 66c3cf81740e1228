"""``torchrun`` whose workers are forked: what they import is imported once, and not by every rank.

    python forked.py MODULES torchrun's arguments     (modules separated by commas)

Agent, rendezvous and variables are those of ``torchrun``; only the start of a worker is another,
and the import of torch and what belongs to it takes seconds."""

from __future__ import annotations

import importlib
import os
import signal
import sys

from torch.distributed.run import main
from torch.multiprocessing.spawn import ProcessContext


def worker() -> None:
    """The agent's handlers are not for its workers, which SIGTERM ends like any other program."""
    for kind in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(kind, signal.SIG_DFL)


def impatient() -> None:
    """A worker that waits within a collective for one that is dead does not hear SIGTERM: the agent
    sends SIGKILL after five seconds, and not after thirty, in which nothing happens."""
    wait = ProcessContext._join_procs_with_timeout
    ProcessContext._join_procs_with_timeout = lambda self, seconds: wait(self, min(seconds, 5.0))


if __name__ == "__main__":
    impatient()
    os.register_at_fork(after_in_child=worker)
    for module in filter(None, sys.argv[1].split(",")):
        importlib.import_module(module)
    main(["--run-path", "--start-method=fork", *sys.argv[2:]])
