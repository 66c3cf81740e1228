"""Which files are looked through for examples (doctests)."""

from __future__ import annotations

from pathlib import Path


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Modules without tests or an example are not imported: some need seconds, or an extra."""
    if collection_path.suffix != ".py" or collection_path.name.startswith("test_"):
        return None
    return True if ">>>" not in collection_path.read_text() else None
