"""Foreign text in messages: of bounded length, and without terminal control codes.

HTML for notebooks (``_repr_html_``): a caption, a table and sentences.

Every text is escaped, and control characters are written out: names of columns, classes and modules
may hold anything. No style of our own but the alignment, so that a notebook's theme holds.
"""

from __future__ import annotations

import html
import unicodedata
from collections.abc import Iterable, Sequence

#: The most characters of one message; an honest one has a few hundred.
LONGEST = 2000
#: Format characters that turn the direction of what follows them.
_TURNING = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


def visible(text: str) -> str:
    """Control characters written out, all but line ends and tabs.

    >>> visible("a\\x1b[2Jb\\n")
    'a\\\\x1b[2Jb\\n'
    """
    if text.isprintable():
        return text
    return "".join(c.encode("unicode_escape").decode("ascii") if _controls(c) else c for c in text)


def bounded(text: str, limit: int = LONGEST) -> str:
    """At most ``limit`` characters: the beginning and the end, where the remedy stands.

    >>> bounded("a" * 50 + "b" * 50, 40)
    'aaaaaaa ... (60 characters more) ... bbb'
    """
    if len(text) <= limit:
        return text
    middle = f" ... ({len(text) - limit:,} characters more) ... "
    kept = max(0, limit - len(middle))
    return f"{text[: kept - kept // 3]}{middle}{text[len(text) - kept // 3 :]}"


def first_line(error: BaseException) -> str:
    """The first line of what an error says, or its kind where it says nothing."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _controls(character: str) -> bool:
    if character in "\n\t":
        return False
    kind = unicodedata.category(character)
    return kind in ("Cc", "Zl", "Zp", "Cs") or character in _TURNING


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
