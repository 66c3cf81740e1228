"""Fits of the tests in this folder: every part of the recipe is there, and short."""

import pytest

from short_recipe import shorten


@pytest.fixture(autouse=True, scope="module")
def _short():
    with pytest.MonkeyPatch.context() as patch:
        shorten(patch)
        yield
