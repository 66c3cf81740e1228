"""What the table can be run on: a data set of images by its name, or a table of classes in a file.

The procedure is one and the same. A table has no neighbouring pixels, so its search has no length.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from lab.beyond.protocol import OVERDAMPED_PROTOTYPE, PROTOTYPE, Protocol
from lab.beyond.search import OFF, Axis
from natural_langevin import data
from natural_langevin.data import Dataset
from natural_langevin.data.npz import read_npz


def problem(
    name: str, protocol: Protocol, *, data_dir: str | None = None
) -> tuple[Dataset, Protocol]:
    """Images called ``name``, or the table in an NPZ file of that name; and the protocol for it."""
    if name == "mnist" and protocol.hidden == Protocol.hidden:
        protocol = replace(protocol, fixed=PROTOTYPE, overdamped_fixed=OVERDAMPED_PROTOTYPE)
    if not name.endswith(".npz"):
        return data.load(name, data_dir=data_dir), protocol
    off = Axis(1.0, 1.0, (OFF,), grows=False)
    no_pixels = replace(protocol, length=off, width=off, deskew=off, fixed=(), overdamped_fixed=())
    return table(Path(name)), no_pixels


def table(path: Path) -> Dataset:
    """The arrays x (N, D), y (N,) of class numbers, x_test and y_test; inputs standardised by the
    training rows, in their order mixed (the last rows are held out)."""
    found = read_npz(path, ("x", "y", "x_test", "y_test"))
    x, x_test = (torch.from_numpy(found[k].astype(np.float64)) for k in ("x", "x_test"))
    labels = np.unique(found["y"])
    y, y_test = (torch.from_numpy(np.searchsorted(labels, found[k])) for k in ("y", "y_test"))
    if len(x) < 12 or len(labels) < 2 or not np.isin(found["y_test"], labels).all():
        raise data.DataError(
            f"{path} has {len(x)} rows of {len(labels)} classes: it needs 12 rows at least, and "
            "every class of the test rows among those of training"
        )
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    mean, sd = x.mean(0), x.std(0)
    sd = torch.where(sd > 0, sd, 1.0)
    train, test = (((values - mean) / sd).float() for values in (x, x_test))
    return Dataset(
        path.stem, train[order], y[order], test, y_test, num_classes=len(labels), source=path.name
    )
