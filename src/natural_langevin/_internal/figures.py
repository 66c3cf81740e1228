"""Figures by matplotlib (the extra ``report``), without pyplot's global state."""

from __future__ import annotations

from typing import Any


def new_figure(*, layout: Any = "constrained", **options: Any) -> Any:
    """A matplotlib figure that shows nothing by itself: ``figure.savefig("name.png")``."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(
            "plots need matplotlib: pip install 'natural-langevin[report]'"
        ) from error
    return Figure(layout=layout, **options)
