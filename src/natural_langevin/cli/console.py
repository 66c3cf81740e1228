"""The terminal: text from files and folder names is shown, never interpreted."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import typer
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from natural_langevin._internal.messages import visible
from natural_langevin.distributed.join import is_rank_zero

#: The width of a table that is shown whole, and the most that COLUMNS may say.
WHOLE, WIDEST = 140, 500


class SafeConsole(Console):
    """rich's, with control characters of the text itself written out."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Every piece of text comes through here; rich's own codes are styles and controls."""
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else visible(text), style, control)


def terminal(**options: Any) -> Console:
    """A pipe or a file has no width: it gets the whole table. Of several processes one prints."""
    if not is_rank_zero():
        return Console(quiet=True)
    found = SafeConsole(**options)
    whole = not found.is_terminal and "COLUMNS" not in os.environ
    if whole or found.width > WIDEST:
        return SafeConsole(width=WHOLE if whole else WIDEST, **options)
    return found


def echo(text: str, *, err: bool = False) -> None:
    """One line or several of plain text."""
    typer.echo(visible(text), err=err)
