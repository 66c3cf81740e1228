"""One file for everything shown of the defaults: ``results/defaults.json``, in parts.

``twenty`` problems, against ``nuts``, and ``longer`` runs. A part has rows by name, and where they
come from. A row is kept when it is done, under a lock: as many processes as there are problems may
write to the same file.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lab.command import study
from lab.pages import fill
from natural_langevin._internal.atomic import write
from natural_langevin._internal.folder_lock import FolderLock
from natural_langevin.cli.experiments.origin import origin

FILE = Path("results/defaults.json")
#: Seconds to wait for another process's row.
PATIENCE = 60.0


def parser(about: str | None) -> argparse.ArgumentParser:
    """With --out, which is ``FILE`` as a rule, --only and --page."""
    found = study(about, str(FILE))
    found.add_argument("--only", nargs="*", help="some problems alone")
    found.add_argument("--page", type=Path, help="a page with markers for the table")
    return found


def rows(path: Path, part: str) -> dict[str, Any]:
    """What has been done of a part, by name."""
    found: dict[str, Any] = _read(path).get(part, {}).get("problems", {})
    return found


def keep(path: Path, part: str, name: str, row: Any, *, device: str = "cpu") -> None:
    """Adds a row, or replaces it, and notes where the part comes from."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with FolderLock(path.parent, "keeping a row", wait=PATIENCE):
        everything = _read(path)
        own = everything.setdefault(part, {"problems": {}})
        own["problems"][name] = row
        own |= origin(device)
        write(path, json.dumps(everything, indent=1).encode())


def show(page: Path, path: Path, part: str, table: Callable[[dict[str, Any]], str]) -> None:
    """Puts a part's table in its place on a page."""
    fill(page, part, table(rows(path, part)))


def _read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return found
