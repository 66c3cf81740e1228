"""Calibration by column: the rows of every category, above and below every number's mean, and
without a value, each by itself. A model that is calibrated on average may be overconfident in one
slice and underconfident in another."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from natural_langevin.tabular.columns import Category, Number
from natural_langevin.tabular.features import Features

#: Beyond this many slices, the columns that come later are not looked at.
MOST_SLICES = 200


class ColumnSlices:
    """Sums over the rows of every slice, batch by batch: their number, how often the truth was hit,
    the probability p of that as it was said, and its variance p (1 - p)."""

    def __init__(self, features: Features) -> None:
        #: Name, input and sign: the rows where sign * input > 0.
        self._slices: list[tuple[str, int, int]] = []
        for part, (value, missing, levels) in features.places():
            if isinstance(part, Category):
                names = enumerate(part.levels, levels)
                self._slices += [(f"{part.name} {level}", k, 1) for k, level in names]
                continue
            if isinstance(part, Number) and (part.mean, part.scale) != (0.0, 1.0):
                mean = f"{part.mean:.4g}"
                self._slices.append((f"{part.name} below {mean}", value, -1))
                self._slices.append((f"{part.name} above {mean}", value, 1))
            if part.missing:
                self._slices.append((f"missing {part.name}", missing, 1))
        self._slices = self._slices[:MOST_SLICES]
        self._sums = torch.zeros(len(self._slices), 4, dtype=torch.float64)

    def add(self, x: Tensor, hit: Tensor, said: Tensor) -> None:
        """Adds rows: inputs (n, width), whether the truth was hit (n,), and its probability."""
        if not self._slices:
            return
        _, place, sign = zip(*self._slices, strict=True)
        inside = (x[:, list(place)] * torch.tensor(sign) > 0).double()
        said = said.double()
        columns = [torch.ones_like(said), hit.double(), said, said * (1 - said)]
        self._sums += inside.T @ torch.stack(columns, 1)

    def result(self) -> list[dict[str, Any]]:
        """Every slice that has rows: its name, ``rows``, and of these the ``share`` that was hit
        beside what was ``said``, with the standard deviation that chance gives the share."""
        found = []
        for (name, *_), (rows, hit, said, variance) in zip(
            self._slices, self._sums.tolist(), strict=True
        ):
            if rows and said == said:  # a predictor that ran away says NaN
                spread = max(0.0, variance) ** 0.5 / rows
                found.append(
                    {"name": name, "rows": int(rows), "said": said / rows, "share": hit / rows,
                     "spread": spread}
                )  # fmt: skip
        return found
