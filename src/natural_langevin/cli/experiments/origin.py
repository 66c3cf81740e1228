"""Where a run comes from: commit, machine and versions, noted when the run is started."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import torch

from natural_langevin._internal.version import __version__


def origin(device: str) -> dict[str, Any]:
    """Where results come from: commit, machine and versions, as results.json holds them."""
    return {
        "commit": _commit(),
        "machine": machine(device),
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "numpy": np.__version__,
            "natural_langevin": __version__,
        },
    }


def machine(device: str) -> dict[str, Any]:
    """What the figures were measured on."""
    name = torch.cuda.get_device_name() if device.startswith("cuda") else "cpu"
    return {"cpu": _cpu_name(), "cores": os.cpu_count(), "device": name}


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    model = next((line.split(":", 1)[1].strip() for line in lines if "model name" in line), "")
    return f"{model or platform.processor() or 'unknown'} ({platform.machine()})"


def _commit() -> str | None:
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
