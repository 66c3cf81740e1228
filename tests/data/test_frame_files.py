"""Excel and Parquet: the same table as from CSV, and what is refused."""

import io
import sys

import numpy as np
import pandas as pd
import pytest

from natural_langevin.data import DataError, frame_files
from natural_langevin.data.csv_file import CsvFile
from natural_langevin.data.tables import open_source, read_training
from natural_langevin.tabular.columns import Category
from natural_langevin.tabular.survey import fit_features

TEXT = """area,town,code,day,state,price
31,Rome,007,2024-03-01,none,1.5
48.5,Oslo,012,2024-03-02,mild,2.25
,Rome,100,2024-03-03,none,NA
60,,101,2024-03-04,severe,3
"""
FILES = [("a.xlsx", "openpyxl"), ("a.parquet", "pyarrow")]


def written(path, text=TEXT):
    frame = pd.read_csv(io.StringIO(text), dtype={"code": str}, keep_default_na=False,
                        na_values={"area": [""], "town": [""]}, parse_dates=["day"])  # fmt: skip
    if path.suffix == ".xlsx":
        frame.to_excel(path, index=False)
    else:
        frame.to_parquet(path, index=False)
    return str(path)


@pytest.mark.parametrize(("name", "package"), FILES)
def test_the_same_table_as_from_csv(tmp_path, name, package):
    pytest.importorskip(package)
    found, notices = frame_files.read(written(tmp_path / name))
    wanted = CsvFile(io.BytesIO(TEXT.encode()), label=name).table()
    assert found.label == name
    assert found.names == wanted.names
    assert not notices
    for column in ("area", "price", "town", "code", "state"):
        assert found.frame[column].dtype == wanted.frame[column].dtype
        assert found.frame[column].isna().tolist() == wanted.frame[column].isna().tolist()
        known = found.frame[column].notna().to_numpy()
        assert (
            found.frame[column][known].tolist() == wanted.frame[column].to_numpy()[known].tolist()
        )
    assert found.frame["day"].dt.strftime("%Y-%m-%d").tolist() == [f"2024-03-0{k}" for k in
                                                                   (1, 2, 3, 4)]  # fmt: skip


@pytest.mark.parametrize(("name", "package"), FILES)
def test_rows_to_learn_from_and_to_predict(tmp_path, name, package):
    pytest.importorskip(package)
    path = written(tmp_path / name)
    data = read_training(path, target="state", drop=frozenset({"code"}))
    assert data.table.names == ("area", "town", "day", "state", "price")
    assert data.table.frame["state"].tolist() == ["none", "mild", "none", "severe"]
    assert "'none' in 2 of 4 rows is taken as a class" in data.notices[0]
    assert data.table.where(0) == f"{name}, row {2 if package == 'openpyxl' else 0}"
    with open_source(path) as source:
        assert [len(part) for part in source.chunks(3)] == [3, 1]
    with pytest.raises(DataError, match="did you mean 'price'"):
        read_training(path, target="Price")


@pytest.mark.parametrize(("name", "package"), FILES)
def test_what_is_written_is_read_again(tmp_path, name, package):
    pytest.importorskip(package)
    kind = frame_files.kind_of(name)
    with open(tmp_path / name, "w+b") as out:
        frame_files.write("mean,code,note\n1.25,007,\n-3e5,012,'=1+1\n", kind, out)
    read = pd.read_excel if kind == "Excel" else pd.read_parquet
    found = read(tmp_path / name)
    assert found["mean"].tolist() == [1.25, -3e5]
    assert found["mean"].dtype == np.float64
    assert found["code"].astype(str).str.zfill(3).tolist() == ["007", "012"]
    assert found["note"].iloc[1] == "'=1+1"


@pytest.mark.parametrize(("name", "package"), FILES)
def test_a_missing_package_is_named_with_the_extra(tmp_path, monkeypatch, name, package):
    (tmp_path / name).write_bytes(b"x")
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError, match=rf"{package}: pip install 'natural-langevin\[files\]'"):
        frame_files.read(str(tmp_path / name))


@pytest.mark.parametrize(("name", "package"), FILES)
def test_damaged_files_are_refused(tmp_path, name, package):
    pytest.importorskip(package)
    (tmp_path / name).write_bytes(b"PK\x03\x04 no such thing")
    with pytest.raises(DataError, match=rf"{name} cannot be read as \w+"):
        frame_files.read(str(tmp_path / name))


def test_the_first_of_several_sheets_is_read_and_named(tmp_path):
    pytest.importorskip("openpyxl")
    with pd.ExcelWriter(tmp_path / "b.xlsx") as book:
        for sheet in ("flats", "notes"):
            pd.DataFrame({"area": [1.0, 2.0]}).to_excel(book, sheet_name=sheet, index=False)
    table, notices = frame_files.read(str(tmp_path / "b.xlsx"))
    assert table.frame["area"].tolist() == [1, 2]
    assert notices == ["b.xlsx has 2 sheets: 'flats', the first, is read"]
    pd.DataFrame({"area": []}).to_excel(tmp_path / "c.xlsx", index=False)
    with pytest.raises(DataError, match=r"c.xlsx holds no rows"):
        frame_files.read(str(tmp_path / "c.xlsx"))


def test_a_named_index_is_a_column_and_categories_stay_categories(tmp_path):
    """As ``frame.set_index("day").to_parquet`` and pandas' category type write them."""
    pytest.importorskip("pyarrow")
    days = pd.date_range("2024-01-01", periods=40, name="day")
    shops = pd.Series(["7", "11", "9", "7"] * 10, index=days, dtype="category")
    frame = pd.DataFrame({"shop": shops, "price": np.arange(40.0)}, index=days)
    frame.to_parquet(tmp_path / "a.parquet")
    table = read_training(str(tmp_path / "a.parquet"), target="price").table
    assert table.names == ("day", "shop", "price")
    features = fit_features(table.take(range(20)), targets=("price",))
    assert features.parts[1] == Category("shop", ("11", "7", "9"))
    frame.reset_index(drop=True).to_parquet(tmp_path / "b.parquet")
    assert frame_files.read(str(tmp_path / "b.parquet"))[0].names == ("shop", "price")


def test_two_columns_of_one_name_in_a_workbook_are_refused(tmp_path):
    pytest.importorskip("openpyxl")
    frame = pd.DataFrame([[1, 2, 3]], columns=["a", "b", "a"])
    frame.to_excel(tmp_path / "a.xlsx", index=False)
    with pytest.raises(DataError, match=r"a\.xlsx has two columns 'a': rename one of them"):
        frame_files.read(str(tmp_path / "a.xlsx"))


def test_an_empty_workbook_is_refused(tmp_path):
    pytest.importorskip("openpyxl")
    pd.DataFrame().to_excel(tmp_path / "a.xlsx", index=False)
    with pytest.raises(DataError, match="holds no rows"):
        frame_files.read(str(tmp_path / "a.xlsx"))
