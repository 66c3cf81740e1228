"""Docstrings hold doctests as plain text; the site shows them as code."""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension, Object

BLOCK = re.compile(r"^( *)>>> .*\n?(?:^(?! *$).*\n?)*", re.MULTILINE)


def fenced(text: str) -> str:
    """Every doctest, up to the next blank line, in a fence.

    >>> fenced("Adds.\\n\\n>>> 1 + 1\\n2\\n\\nMore.").splitlines()
    ['Adds.', '', '```pycon', '>>> 1 + 1', '2', '```', '', 'More.']
    """
    return BLOCK.sub(lambda m: f"{m[1]}```pycon\n{m[0].rstrip()}\n{m[1]}```\n", text)


class Doctests(Extension):
    """For mkdocstrings: edits every docstring as it is read."""

    def on_object(self, *, obj: Object, **options: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)
