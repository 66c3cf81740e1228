"""How many bytes a GPU, the machine and a disk have, and where on it files may be cached."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import torch

#: Where Linux says how much a container may have.
_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def in_memory(device: torch.device | None = None) -> int:
    """Bytes of memory in all, free or not: of a GPU, else of the machine or of its container."""
    if device is not None and device.type == "cuda":
        return torch.cuda.mem_get_info(device)[1]
    there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([there, *filter(None, map(_limit, _LIMITS))])


def _limit(path: str) -> int | None:
    """The number in a file; None where there is no such file, or no number in it ("max")."""
    try:
        return int(Path(path).read_text())
    except (OSError, ValueError):
        return None


def on_disk(folder: Path) -> int:
    """Free bytes on the disk where this folder is, or will be made."""
    existing = next(p for p in (folder, *folder.absolute().parents) if p.exists())
    return shutil.disk_usage(existing).free


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
