"""A page as its elements, in order; a tag that does not nest is a failure."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from typing import Any

VOID = {"meta", "link", "img", "br", "hr", "input"}


class Reader(HTMLParser):
    """Elements in order as (tag, attributes, text inside); complains when tags do not nest."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str], list[str]]] = []
        self._open: list[tuple[str, dict[str, str], list[str]]] = []
        self.feed(page)
        assert not self._open, "an element is not closed"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        element = (tag, {k: v or "" for k, v in attrs}, list[str]())
        self.elements.append(element)
        if tag not in VOID:
            self._open.append(element)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {k: v or "" for k, v in attrs}, []))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop()[0] == tag

    def handle_data(self, data: str) -> None:
        for _, _, text in self._open:
            text.append(data)

    def numbers(self) -> dict[tuple[str, str, str], tuple[Any, str]]:
        """(method, estimate, column) -> (raw value, shown text)."""
        return {
            (a["data-method"], a["data-estimate"], a["data-column"]): (
                json.loads(a["data-value"]),
                "".join(text),
            )
            for _, a, text in self.elements
            if "data-column" in a
        }
