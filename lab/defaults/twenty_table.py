"""The table of ``twenty``: a problem a row, in the mean over its splits, the best rival beside, and
on how many we are as good and calibrated: by the first split alone, and by all of them."""

from __future__ import annotations

import statistics
from typing import Any

from lab.defaults import calibration
from lab.defaults.rivals import NAMES
from lab.pages import markdown

#: Problems of which the recipe has seen something: see the page.
SEEN = {"uci boston", "uci concrete", "digits", "digits as images"}
#: A calibration error below this is called calibrated.
GOAL = 0.05
COLUMNS = (
    "rows", "splits", "NLL", "best rival's", "rival", "ours minus it", "calibration error, pooled",
    "if calibrated", "split 0: NLL", "best rival's", "calibration error", "if calibrated",
    "CPU-seconds",
)  # fmt: skip


def key(name: str, split: int) -> str:
    """The row's name in the file.

    >>> key("iris", 0), key("iris", 3)
    ('iris', 'iris split 3')
    """
    return f"{name} split {split}" if split else name


class Summary:
    """What the splits of one problem say that have been run by us and by the rivals."""

    def __init__(self, name: str, rows: dict[str, Any], rivals: dict[str, Any]) -> None:
        keys = [key(name, split) for split in range(len(rows))]
        keys = [k for k in keys if k in rows and k in rivals]
        self.name, self.first = name, rows[name]
        self.rows, others = [rows[k] for k in keys], [rivals[k] for k in keys]
        self.ours = [row["ours"] for row in self.rows]
        nll = {k: [row[k]["nll"] for row in others] for k in NAMES}
        self.rival = min(NAMES, key=lambda k: statistics.fmean(nll[k]))
        self.theirs, self.theirs_first = nll[self.rival], min(v[0] for v in nll.values())
        self.counts = [row.get("calibration") for row in self.rows]
        self.rival_counts = [row[self.rival].get("calibration") for row in others]

    @property
    def differences(self) -> list[float]:
        """Ours minus the rival's, by split."""
        return [a - b for a, b in zip(self.ours, self.theirs, strict=True)]

    @property
    def pooled(self) -> float | None:
        """Calibration error of all splits' test rows together."""
        return calibration.error(self.counts) if all(self.counts) else None

    def cells(self) -> tuple[str, ...]:
        """A row of the table."""
        pooled = (self.pooled, calibration.if_calibrated(self.counts)) if all(self.counts) else ()
        first = self.first
        return (
            self.name, f"{first['rows']:,}", str(len(self.rows)), _mean(self.ours),
            f"{statistics.fmean(self.theirs):.3f}", self.rival, _mean(self.differences),
            *([f"{v:.3f}" for v in pooled] or ["", ""]),
            f"{first['ours']:.3f}", f"{self.theirs_first:.3f}",
            *(f"{first[f'calibration_error{k}']:.3f}" for k in ("", "_if_calibrated")),
            f"{statistics.fmean(row['cpu_seconds'] for row in self.rows):.1f}",
        )  # fmt: skip


def table(rows: dict[str, Any], rivals: dict[str, Any]) -> str:
    """Markdown, of rows by name and split (see ``key``)."""
    found = [Summary(name, rows, rivals) for name in rows if " split " not in name]
    as_good = {s.name for s in found if statistics.fmean(s.differences) <= 0}
    at_first = {s.name for s in found if s.ours[0] <= s.theirs_first}
    first = [s.first["calibration_error"] for s in found]
    alone = [statistics.fmean(row["calibration_error"] for row in s.rows) for s in found]
    pooled = [s.pooled for s in found if s.pooled is not None]
    theirs = [calibration.error(s.rival_counts) for s in found if all(s.rival_counts)]
    known = f" (the best rival's on {_below(theirs)})" if theirs else ""
    return "\n\n".join((
        markdown(COLUMNS, [s.cells() for s in found]),
        f"Over all splits: at least as good as the best rival on {_of(as_good, found)}, pooled "
        f"calibration error below .05 on {_below(pooled)}{known}; errors of the splits by "
        f"themselves, in the mean, on {_below(alone)}.",
        f"By split 0 alone: at least as good on {_of(at_first, found)}, calibration error below "
        f".05 on {_below(first)}. From the plain mixture to the sharpened one, or to noise of "
        f"several widths: {_plain(found)}.",
    ))  # fmt: skip


def _mean(values: list[float]) -> str:
    """With its standard error, where there are several."""
    if len(values) == 1:
        return f"{values[0]:.3f}"
    return f"{statistics.fmean(values):.3f} ± {statistics.stdev(values) / len(values) ** 0.5:.3f}"


def _below(errors: list[float]) -> str:
    return f"{sum(v < GOAL for v in errors)} of {len(errors)}"


def _of(good: set[str], found: list[Summary]) -> str:
    new = {s.name for s in found} - SEEN
    return f"{len(good)} of {len(found)} ({len(good & new)} of the {len(new)} new to the recipe)"


def _plain(found: list[Summary]) -> str:
    said = [
        f"{s.name} {s.first['plain']['ours']:.3f} → {s.first['ours']:.3f} (calibration error "
        f"{s.first['plain']['calibration_error']:.3f} → {s.first['calibration_error']:.3f})"
        for s in found
        if s.first["plain"]
    ]
    return ", ".join(said) or "none"
