"""Line numbers of docs/paper_to_code.md, computed from the anchor texts beside them.

    python tests/docs/relink.py            rewrites the line numbers in place
    python tests/docs/relink.py --check    only says whether they are right (exit code 1: no)

A row of the document's tables ends in a link and its anchors:

    ... | [`random.py` L103](../src/natural_langevin/random.py#L103) | `first` … `last` |

One anchor: the lines of the smallest Python statement that contains it (a whole function or class
when it is in its first line), or its own line when it is a comment. Two anchors: from the line of
the first to the next line that holds the last. The (first) anchor occurs once in the file.
"""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path
from typing import NamedTuple

DOCUMENT = Path(__file__).parents[2] / "docs" / "paper_to_code.md"

ROW = re.compile(
    r"\[`(?P<name>[^`]+)` (?P<shown>L\d+(?:-L\d+)?)\]"
    r"\((?P<path>[^)#]+)#(?P<target>L\d+(?:-L\d+)?)\)"
    r" \| `(?P<first>[^`]+)`(?: … `(?P<last>[^`]+)`)? \|$",
    re.MULTILINE,
)
LINK = re.compile(r"\]\([^)#]+#L\d+")


class AnchorError(ValueError):
    """An anchor that is not in its file, or in more than one place."""


class Range(NamedTuple):
    """Lines first .. last, counted from 1."""

    first: int
    last: int

    def __str__(self) -> str:
        return f"L{self.first}" if self.first == self.last else f"L{self.first}-L{self.last}"

    @classmethod
    def parse(cls, text: str) -> Range:
        numbers = [int(n) for n in re.findall(r"\d+", text)]
        return cls(numbers[0], numbers[-1])


def locate(source: str, first: str, last: str | None = None) -> Range:
    """The lines that one or two anchors stand for.

    >>> code = "import math\\n\\ndef f(x):\\n    y = (\\n        x + 1\\n    )\\n    return y\\n"
    >>> str(locate(code, "x + 1")), str(locate(code, "def f")), str(locate(code, "y = (", "return"))
    ('L4-L6', 'L3-L7', 'L4-L7')
    """
    lines = source.splitlines()
    found = [number for number, line in enumerate(lines, 1) if first in line]
    if len(found) != 1:
        raise AnchorError(f"anchor {first!r} is in {len(found)} lines instead of one: {found}")
    start = found[0]
    if last is not None:
        end = next((n for n in range(start, len(lines) + 1) if last in lines[n - 1]), None)
        if end is None:
            raise AnchorError(f"anchor {last!r} does not occur after line {start}, {first!r}")
        return Range(start, end)
    if lines[start - 1].lstrip().startswith("#"):
        return Range(start, start)
    around = [
        Range(node.lineno, node.end_lineno or node.lineno)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.stmt) and node.lineno <= start <= (node.end_lineno or node.lineno)
    ]
    return min(around, key=lambda r: r.last - r.first, default=Range(start, start))


def relinked(text: str, folder: Path) -> str:
    """The document ``text``, which lies in ``folder``, with its line numbers put right."""
    wrong = []

    def replace(match: re.Match[str]) -> str:
        row = match.group()
        try:
            lines = locate((folder / match["path"]).read_text(), match["first"], match["last"])
        except (AnchorError, OSError) as error:
            wrong.append(f"{match['path']}: {error}")
            return row
        row = row.replace(f" {match['shown']}](", f" {lines}](", 1)
        return row.replace(f"#{match['target']})", f"#{lines})", 1)

    new = ROW.sub(replace, text)
    if wrong:
        raise AnchorError("\n".join(wrong))
    return new


def main(arguments: list[str]) -> int:
    old = DOCUMENT.read_text()
    try:
        new = relinked(old, DOCUMENT.parent)
    except AnchorError as error:
        print(error, file=sys.stderr)
        return 2
    pairs = zip(old.splitlines(), new.splitlines(), strict=True)
    changed = sum(a != b for a, b in pairs)
    if "--check" not in arguments and changed:
        DOCUMENT.write_text(new)
    print(f"{DOCUMENT.name}: {len(ROW.findall(old))} links, {changed} out of date")
    return 1 if changed and "--check" in arguments else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
