"""Figures by matplotlib (the extra ``report``), without pyplot's global state."""

from __future__ import annotations

from typing import Any

from natural_langevin._internal.extras import needing


def new_figure(*, layout: Any = "constrained", **options: Any) -> Any:
    """A matplotlib figure that shows nothing by itself: ``figure.savefig("name.png")``."""
    with needing("plots need matplotlib", "report"):
        from matplotlib.figure import Figure
    return Figure(layout=layout, **options)
