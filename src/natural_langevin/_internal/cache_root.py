"""The cache folder, for files that can be made or downloaded again."""

from __future__ import annotations

import os
from pathlib import Path


def cache_root() -> Path | None:
    """natural-langevin in $XDG_CACHE_HOME or ~/.cache; None without a home.

    A relative path is ignored, as the XDG specification says: what is kept is read again, and must
    not come from whatever folder somebody works in."""
    root = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if not root.is_absolute():
        try:
            root = Path.home() / ".cache"
        except RuntimeError:  # a user without an entry, as in many containers
            return None
    return root / "natural-langevin" if root.is_absolute() else None
