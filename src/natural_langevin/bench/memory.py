"""Section "memory"."""

from __future__ import annotations

from typing import Any

from natural_langevin.bench.measure import Say
from natural_langevin.bench.settings import Settings


def section(settings: Settings, say: Say) -> dict[str, Any]:
    return {}
