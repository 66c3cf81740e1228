"""What commands that make a page's table have in common: page, picture and terminal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.table import Table

from natural_langevin._internal.pages import NoPlaceError
from natural_langevin.cli.console import terminal
from natural_langevin.cli.errors import UsageError

PICTURES = (".svg", ".png", ".pdf", ".jpg")


def publish(module: Any, results: Mapping[str, Any], page: Path | None, plot: Path | None) -> None:
    """Into the page and the picture, where they were asked for; ``module`` makes both."""
    if page is not None:
        if not page.is_file():
            raise UsageError(f"there is no {page}: give --page a text file with a table to replace")
        try:
            text = module.with_table(page.read_text(encoding="utf-8"), results)
        except NoPlaceError as error:
            raise UsageError(f"{page} {error}") from None
        page.write_text(text, encoding="utf-8")
    if plot is not None:
        if plot.suffix.lower() not in PICTURES:
            raise UsageError(f"{plot} is no picture: give --plot a name that ends in .svg or .png")
        module.plot(results, plot)


def show(columns: Sequence[str], rows: Iterable[Sequence[str]], title: str = "") -> None:
    """The same rows in the terminal."""
    shown = Table(box=None, padding=(0, 2, 0, 0))
    shown.add_column(title)
    for name in columns:
        shown.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        shown.add_row(*map(escape, row))
    terminal().print(shown)
