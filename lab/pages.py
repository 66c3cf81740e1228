"""Tables on pages: Markdown, and the place between a page's markers where results go."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path


class NoPlaceError(ValueError):
    """A page without the markers between which a table goes."""


def markdown(columns: Sequence[str], rows: Iterable[Sequence[str]], *, first: str = "") -> str:
    """A title and cells in every row; ``first``: what the titles are.

    >>> print(markdown(["NLL"], [("ours", "0.1")]))
    | | NLL |
    |---|---|
    | ours | 0.1 |
    """
    title = f"{first} " if first else ""
    lines = [f"| {title}| {' | '.join(columns)} |", "|---|" + "---|" * len(columns)]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


def with_part(page: str, name: str, content: str) -> str:
    """The page's text with ``content`` between its markers of this name.

    >>> with_part("a <!-- x:begin -->\\nold\\n<!-- x:end --> b", "x", "new")
    'a <!-- x:begin -->\\nnew\\n<!-- x:end --> b'
    """
    begin, end = f"<!-- {name}:begin -->\n", f"<!-- {name}:end -->"
    if page.count(begin) != 1 or end not in page.split(begin)[1]:
        raise NoPlaceError(f"has no place for the table: add a line {begin.strip()}, and {end}")
    before, rest = page.split(begin)
    return f"{before}{begin}{content}\n{end}{rest.split(end)[1]}"


def fill(page: Path, name: str, content: str) -> None:
    """Writes ``content`` into its place on a page."""
    page.write_text(with_part(page.read_text(encoding="utf-8"), name, content), encoding="utf-8")
