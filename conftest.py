"""Which files are looked through for examples (doctests), and how long these run."""

from __future__ import annotations

from pathlib import Path

import pytest


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Modules without tests or an example are not imported: some need seconds, or an extra."""
    if collection_path.suffix != ".py" or collection_path.name.startswith("test_"):
        return None
    return True if ">>>" not in collection_path.read_text() else None


@pytest.fixture(autouse=True)
def _short_examples(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Examples show how something is called: of what is left open, every part is there, and
    short."""
    if isinstance(request.node, pytest.DoctestItem):
        from short_recipe import shorten

        shorten(monkeypatch)
