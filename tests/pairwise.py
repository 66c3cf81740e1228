"""Some of a product of settings, such that every two values of different settings meet."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pytest


def pairwise(*settings: Sequence[Any]) -> set[tuple[Any, ...]]:
    """Members of the product, chosen one after the other, each with most pairs that are new.

    >>> len(pairwise("abc", "xyz", "12")), len(list(itertools.product("abc", "xyz", "12")))
    (9, 18)
    """
    every = list(itertools.product(*settings))
    left = set().union(*map(_pairs, every))
    chosen = set()
    while left:
        best = max(every, key=lambda one: len(_pairs(one) & left))
        chosen.add(best)
        left -= _pairs(best)
    return chosen


def covering(*settings: Sequence[Any]) -> list[Any]:
    """The whole product for ``parametrize``: what pairwise covering leaves out is ``thorough``."""
    chosen = pairwise(*settings)
    return [
        pytest.param(
            *one,
            marks=() if one in chosen else pytest.mark.thorough,
            id="-".join(getattr(v, "__name__", str(v)).removeprefix("torch.") for v in one),
        )
        for one in itertools.product(*settings)
    ]


def _pairs(one: tuple[Any, ...]) -> set[Any]:
    return {((a, one[a]), (b, one[b])) for a, b in itertools.combinations(range(len(one)), 2)}
