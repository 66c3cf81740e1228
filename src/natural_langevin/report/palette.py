"""One colour and one dash per method, the same in every chart. The colours themselves are CSS."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

HUES = 12  # .hue0 to .hue11 in style.css
KNOWN = ("sgd", "dropout", "euclidean", "rmsprop", "dop", "qdop")


def hues(methods: Iterable[str]) -> Mapping[str, str]:
    """CSS class of each method: the paper's six have theirs, others take what follows, in order.

    >>> hues(["qdop", "full", "sgd", "full"])
    {'qdop': 'hue5', 'full': 'hue6', 'sgd': 'hue0'}
    """
    chosen: dict[str, str] = {}
    free = len(KNOWN)
    for method in methods:
        if method in chosen:
            continue
        if method in KNOWN:
            index = KNOWN.index(method)
        else:
            index, free = free % HUES, free + 1
        chosen[method] = f"hue{index}"
    return chosen
