"""Foreign text in messages: of bounded length, and without terminal control codes."""

from __future__ import annotations

import unicodedata

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


def _controls(character: str) -> bool:
    if character in "\n\t":
        return False
    kind = unicodedata.category(character)
    return kind in ("Cc", "Zl", "Zp", "Cs") or character in _TURNING
