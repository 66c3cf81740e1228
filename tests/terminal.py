"""What a command writes to a real terminal."""

from __future__ import annotations

import os
import pty
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path


def said_to_a_terminal(words: Sequence[str | Path], environment: Mapping[str, str]) -> str:
    """All that it writes, with the terminal's codes; it must end well."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(words, env=environment, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    said = b""
    try:
        while piece := os.read(ours, 1 << 16):
            said += piece
    except OSError:  # how Linux ends a terminal whose last writer is gone
        pass
    os.close(ours)
    assert process.wait() == 0, said
    return said.decode()
