"""``torchrun`` whose workers are forked: what they import is imported once, and not by every rank.

    python forked.py MODULES torchrun's arguments     (modules separated by commas)

Agent, rendezvous and variables are those of ``torchrun``; only the start of a worker is another,
and the import of torch and what belongs to it takes seconds. Workers are forked from a process
that has one thread: the agent has several, and a worker that is forked while another thread holds
a lock waits for it for ever."""

from __future__ import annotations

import importlib
import itertools
import os
import sys
import threading
from collections.abc import Sequence
from multiprocessing import forkserver, util

from torch.distributed.run import main
from torch.multiprocessing.spawn import ProcessContext


def impatient() -> None:
    """A worker that waits within a collective for one that is dead does not hear SIGTERM: the agent
    sends SIGKILL after half a second, and not after thirty, in which nothing happens."""
    wait = ProcessContext._join_procs_with_timeout
    ProcessContext._join_procs_with_timeout = lambda self, seconds: wait(self, min(seconds, 0.5))


def forked(path: str, words: Sequence[str], kept: Sequence[int]) -> int:
    """Starts Python's server of forks with what is imported here: ``util.spawnv_passfds``."""
    process = os.fork()
    if process:
        return process
    ends = [2, *sorted(kept), os.sysconf("SC_OPEN_MAX")]
    for before, after in itertools.pairwise(ends):
        os.closerange(before + 1, after)
    forkserver._forkserver._lock = threading.Lock()  # held by whoever starts the server
    try:
        exec(words[-1], {})  # python -c
    finally:
        os._exit(0)


if __name__ == "__main__":
    impatient()
    for module in filter(None, sys.argv[1].split(",")):
        importlib.import_module(module)
    start, util.spawnv_passfds = util.spawnv_passfds, forked
    forkserver.ensure_running()
    util.spawnv_passfds = start
    main(["--run-path", "--start-method=forkserver", *sys.argv[2:]])
