"""The command line: ``natural-langevin``. One file per subcommand; this one only joins them."""

from __future__ import annotations

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
    app()
