"""Room: how many bytes there are on a device, in the machine, and on a disk."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import torch


def in_memory(device: torch.device) -> int:
    """All of the memory of a GPU, or of the machine."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[1]
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def on_disk(folder: Path) -> int:
    """What is free on the disk where this folder is, or will be made."""
    existing = next(p for p in (folder, *folder.absolute().parents) if p.exists())
    return shutil.disk_usage(existing).free
