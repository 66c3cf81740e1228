"""Packages that only some of the library needs: where one is missing, the error names the extra."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def needing(what: str, extra: str) -> Iterator[None]:
    """Around an import: ``what`` says who needs which package, ``extra`` which of ours has it."""
    try:
        yield
    except ImportError as error:
        remedy = f"pip install 'natural-langevin[{extra}]'"
        raise ImportError(f"{what}: {remedy}", name=error.name) from error


def new_figure(*, layout: Any = "constrained", **options: Any) -> Any:
    """A matplotlib figure that shows nothing by itself: ``figure.savefig("name.png")``."""
    with needing("plots need matplotlib", "report"):
        from matplotlib.figure import Figure
    return Figure(layout=layout, **options)
