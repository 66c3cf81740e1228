"""How many made-up files a test tries."""

from __future__ import annotations

import os


def examples(count: int) -> int:
    """All of them by `make attack`, and a quarter where every other test is run too."""
    return count if "ATTACK_COUNTS" in os.environ else count // 4
