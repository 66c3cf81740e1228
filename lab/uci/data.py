"""The nine tables, in ``lab/data/uci``, and their splits."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lab.data import FOLDER
from natural_langevin.data.errors import CorruptDataError
from natural_langevin.data.npz import read_npz


@dataclass(frozen=True)
class UciTable:
    """``sha256`` is of the file, ``splits`` how many there are."""

    file: str
    sha256: str
    splits: int = 20


TABLES = {
    "boston": UciTable(
        "bostonHousing.npz",
        "c39992672bc5a466a7a90ac3fc12e0e16de61e955152c3106671b65c11de7543",
    ),
    "concrete": UciTable(
        "concrete.npz",
        "87f059a32b6f0de9466cdbca822567eec68b78539fa8132e64af0ad595fac79f",
    ),
    "energy": UciTable(
        "energy.npz",
        "7ca102cd3c5716c025f0729cf818cb126e1e97786a1321a91c12876817c79123",
    ),
    "kin8nm": UciTable(
        "kin8nm.npz",
        "12e731369a94285a2e1e9d0e0fa527527f05186c58ce392ad2dd5dde044fe81c",
    ),
    "naval": UciTable(
        "naval-propulsion-plant.npz",
        "3782f3ebe6921c2c7fa4cbbed1e8a397c51d1bcd1e2b0822538a3d0fb7363aab",
    ),
    "power": UciTable(
        "power-plant.npz",
        "f4ae486774a56b0b1c5aca99da6f3b4cb701245438d81c205a55bda76e346896",
    ),
    "protein": UciTable(
        "protein-tertiary-structure.npz",
        "76d7342a645292a6620cb8808a9878c4ddf4a7dd6ebef59c17897322bd382068",
        splits=5,
    ),
    "wine": UciTable(
        "wine-quality-red.npz",
        "b4a63c8e7b6598d6436984725a03edcc3cc0d88fed5fcb2edd70b2ba7b118868",
    ),
    "yacht": UciTable(
        "yacht.npz",
        "0703449d9f9d9206e365f50c3e47d958b0650dee1afd8cde4b85e437e38fd409",
    ),
}


def load(name: str) -> dict[str, NDArray[Any]]:
    """x (n, inputs), y (n,) and test_k, the rows to test on in split k."""
    table = TABLES[name]
    path = FOLDER / "uci" / table.file
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    if digest != table.sha256:
        raise CorruptDataError(f"{path} was altered (SHA-256 {digest}): check it out anew")
    return read_npz(path, ("x", "y", *(f"test_{k}" for k in range(table.splits))))


def split(arrays: dict[str, NDArray[Any]], number: int) -> tuple[NDArray[Any], ...]:
    """x and y to train on, then x and y to test on."""
    test = np.zeros(len(arrays["y"]), dtype=bool)
    test[arrays[f"test_{number}"]] = True
    x, y = arrays["x"], arrays["y"]
    return x[~test], y[~test], x[test], y[test]
