"""HTML for notebooks (``_repr_html_``): a caption, a table and sentences.

Every text is escaped, and control characters are written out: names of columns, classes and modules
may hold anything. No style of our own but the alignment, so that a notebook's theme holds.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

from natural_langevin._internal.messages import visible

_LEFT = ' style="text-align: left"'


def shown(
    caption: str,
    rows: Iterable[Sequence[str]] = (),
    notes: Iterable[str] = (),
    *,
    head: Sequence[str] = (),
) -> str:
    """A caption, rows under an optional ``head``, and one paragraph for every note.

    >>> shown("60 <samples>", [("accuracy", "35 %")])
    '<div><b>60 &lt;samples&gt;</b><table><tr><td style="text-align: left">accuracy</td><td
    style="text-align: left">35 %</td></tr></table></div>'
    """
    lines = [_row(head, "th")] if head else []
    lines += [_row(row, "td") for row in rows]
    table = f"<table>{''.join(lines)}</table>" if lines else ""
    paragraphs = "".join(f"<p>{_safe(note)}</p>" for note in notes)
    return f"<div><b>{_safe(caption)}</b>{table}{paragraphs}</div>"


def text_shown(text: str) -> str:
    """A text of several lines: the first is the caption, each of the others a paragraph."""
    caption, *notes = text.splitlines()
    return shown(caption, (), notes)


def _row(cells: Sequence[str], tag: str) -> str:
    return f"<tr>{''.join(f'<{tag}{_LEFT}>{_safe(cell)}</{tag}>' for cell in cells)}</tr>"


def _safe(text: str) -> str:
    return html.escape(visible(text))
