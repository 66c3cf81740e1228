"""A run's folder; run.json holds the encoding of columns and the sampled network.

The file has a checksum, and readers of fields refuse wrong ones.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from natural_langevin._internal import checked_json
from natural_langevin._internal.checked_json import with_checksum, without_checksum, write_json
from natural_langevin._internal.provenance import check_same_run
from natural_langevin._internal.version import __version__
from natural_langevin.tabular.features import Features
from natural_langevin.tabular.recipe import Learned
from natural_langevin.tabular.settings import Settings
from natural_langevin.tabular.target import Target

FORMAT = 2


class RunFolderError(ValueError):
    """A folder without a run, with an incomplete run, or with another one."""


class OtherRunError(RunFolderError):
    """A folder that holds another run, or something that is none."""


@dataclass(frozen=True)
class Run:
    """``source`` names the data, ``rows`` counts training and held-out rows."""

    source: str
    rows: tuple[int, int]
    features: Features
    target: Target
    settings: Settings
    hold_out: float
    notices: tuple[str, ...] = ()  # about rows; those about columns are in the features

    def to_json(self) -> dict[str, Any]:
        """As plain values, for run.json."""
        return {
            "format": FORMAT,
            "version": __version__,
            "source": self.source,
            "task": self.target.task,
            "rows": list(self.rows),
            "hold_out": self.hold_out,
            "target": self.target.to_json(),
            "features": self.features.to_json(),
            "settings": self.settings.to_json(),
            "notices": list(self.notices),
        }

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> Run:
        """The run of a run.json."""
        return Run(
            str(value["source"]),
            (int(value["rows"][0]), int(value["rows"][1])),
            Features.from_json(value["features"]),
            Target.from_json(value["target"]),
            Settings.from_json(value["settings"]),
            float(value["hold_out"]),
            tuple(map(str, value["notices"])),
        )


def learned_folder(folder: Path) -> Path:
    """Where a run keeps its posteriors."""
    return folder / "learned"


def checkpoint_folder(folder: Path) -> Path:
    """Where a run keeps its checkpoint."""
    return folder / "checkpoint"


def is_run(folder: Path) -> bool:
    """Whether a folder holds a trained run."""
    return (folder / "run.json").is_file()


def is_started(folder: Path) -> bool:
    """Whether there is work to lose: a checkpoint, or what comes after."""
    found = checkpoint_folder(folder)
    begun = found.is_dir() and any(not p.name.startswith(".") for p in found.iterdir())
    return is_run(folder) and (begun or learned_folder(folder).exists() or is_finished(folder))


def is_finished(folder: Path) -> bool:
    """Whether a run is finished: quality.json is the last thing that train writes."""
    return (folder / "quality.json").is_file()


def remove(folder: Path) -> None:
    """Removes the run in a folder; run.json is the last to go. What else lies there stays."""
    for inside in (checkpoint_folder(folder), learned_folder(folder)):
        shutil.rmtree(inside, ignore_errors=True)
    for name in ("quality.json", "how_sure.png", "report.html", "run.json"):
        (folder / name).unlink(missing_ok=True)


def write_run(folder: Path, run: Run) -> None:
    """run.json, with a checksum: predictions depend on every number in it."""
    write_json(folder / "run.json", with_checksum(run.to_json()))


def write_quality(folder: Path, quality: Mapping[str, Any]) -> None:
    """quality.json, the last thing that a run writes, with a checksum."""
    write_json(folder / "quality.json", with_checksum(quality))


def read_json(path: Path, remedy: str = "copy the folder again, or train again") -> dict[str, Any]:
    """The fields of a file of this format; RunFolderError, with a ``remedy`` for one that is
    damaged, whatever else is there."""
    try:
        value = checked_json.read_json(path)
        if not isinstance(value, dict) or value.get("format") != FORMAT:
            raise RunFolderError(
                f"{path} is not of this version (format {FORMAT}): train again, or use the version "
                "of natural-langevin that wrote it"
            )
        return without_checksum(value)
    except OSError as error:
        raise RunFolderError(f"cannot read {path}: {error.strerror or error}") from None
    except RunFolderError:
        raise
    except ValueError as error:
        raise RunFolderError(f"cannot read {path}: {error}; it is damaged: {remedy}") from None


def load_run(folder: Path) -> Run:
    """The run in a folder, finished or not."""
    if not is_run(folder):
        raise RunFolderError(
            f"{folder} holds no run (no run.json): give a folder that "
            "natural-langevin train --out wrote"
        )
    value = read_json(folder / "run.json")
    try:
        return Run.from_json(value)
    except (KeyError, TypeError, ValueError, IndexError, OverflowError, AttributeError) as error:
        raise RunFolderError(
            f"{folder / 'run.json'} is damaged ({type(error).__name__}: {error}): train again"
        ) from None


def read_quality(folder: Path) -> dict[str, Any]:
    """What ``write_quality`` wrote, and nothing else."""
    remedy = "remove it and run the same train command with --resume"
    return read_json(folder / "quality.json", remedy)


def load_learned(folder: Path, device: str = "cpu") -> Learned:
    """What a finished run learned."""
    if not is_finished(folder):
        raise RunFolderError(
            f"the run in {folder} is not finished: run the same train command with --resume"
        )
    try:
        return Learned.load(learned_folder(folder), device)
    except (OSError, KeyError, TypeError, ValueError, IndexError, RecursionError) as error:
        raise RunFolderError(
            f"{learned_folder(folder)} is damaged ({type(error).__name__}: {error}): train again"
        ) from None


def check_same(folder: Path, run: Run) -> None:
    """Resuming needs the same data and settings; an error names the differences."""
    there, here = read_json(folder / "run.json"), json.loads(json.dumps(run.to_json()))
    passed_over = {"version": None}  # a newer one may go on where the format is the same
    check_same_run(
        folder, there | passed_over, here | passed_over, what="another run",
        remedy="Use the same data and options, or another --out", error=OtherRunError,
    )  # fmt: skip
