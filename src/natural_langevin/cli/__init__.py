"""The command line: ``natural-langevin``. One file per subcommand; this one only joins them.

Imports what its commands run; nothing imports it.
"""

from __future__ import annotations

import io
import sys


def main() -> None:
    """Entry point. A missing optional dependency is one line, not a traceback."""
    try:
        from natural_langevin.cli.app import app
    except ImportError as error:
        print(
            f"natural-langevin needs {error.name}: pip install 'natural-langevin[cli,report]'",
            file=sys.stderr,
        )
        raise SystemExit(2) from None
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a name it cannot show is no reason to stop
            stream.reconfigure(errors="backslashreplace")
    app()
