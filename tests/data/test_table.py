"""CSV files as people write them: what is read, and what is refused with line and column."""

import contextlib
import datetime
import io

import numpy as np
import pandas as pd
import pytest

from natural_langevin.data import DataError, csv_file
from natural_langevin.data.csv_file import LONGEST_ROW, CsvFile
from natural_langevin.data.table import Table, from_frame


def table(text: str | bytes, **options) -> Table:
    data = text.encode() if isinstance(text, str) else text
    return CsvFile(io.BytesIO(data), label="a.csv").table(**options)


def refusal(text: str | bytes) -> str:
    with pytest.raises(DataError) as caught:
        table(text)
    return str(caught.value)


def test_numbers_are_numbers_and_words_are_words():
    found = table("age,town\n31,Rome\n-2.5e1,Oslo\n 7 ,Rome\n")
    assert found.names == ("age", "town")
    assert found.frame["age"].tolist() == [31, -25, 7]
    assert found.frame["town"].tolist() == ["Rome", "Oslo", "Rome"]


@pytest.mark.parametrize(
    "text",
    [
        "a,b\r\n1,x\r\n2,y\r\n",  # Windows
        "a;b\n1;x\n2;y\n",  # a European spreadsheet
        "a\tb\n1\tx\n2\ty",  # tabs, no newline at the end
        "\ufeffa,b\n1,x\n\n2,y\n\n",  # a byte-order mark, blank lines
        "a|b\n1|x\n2|y\n",
        '"a", b \n"1",x\n2,"y"\n',  # quotes and spaces
    ],
)
def test_the_common_ways_of_writing_a_table_read_the_same(text):
    found = table(text)
    assert found.names == ("a", "b")
    assert found.frame["a"].tolist() == [1, 2]
    assert found.frame["b"].tolist() == ["x", "y"]
    assert found.where(1) == f"a.csv, line {4 if 'ufeff' in ascii(text) else 3}"


def test_quoted_cells_may_hold_separators_quotes_and_line_ends():
    found = table('a,b\n1,"x, ""y""\nz"\n2,w\n')
    assert found.frame["b"].tolist() == ['x, "y"\nz', "w"]
    assert found.where(1) == "a.csv, line 4"


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("a,b\n1,x,3\n", ["line 2", "3 cells", "2"]),
        ('a,b\n\n1,"x",3\n', ["line 3", "3 cells", "2"]),
        ('a,b\n1,"x",3,4,5\n', ["line 2", "5 cells", "2"]),
        ('a,b\n1,"x"\n1,"x",3,4,5\n', ["line 3", "5 cells", "2"]),
        ("a,b\n1\n", ["line 2", "1 cells"]),
        ('a,b\n1,"x\n', ["line 2", "quotes"]),
        ('a,b\n1,"x"\n\n2,"y\nz\n', ["line 4: a quote is not closed"]),
        ('"a,b\n1,x\n', ["line 1: a quote is not closed"]),
        ('a,b\n"1"\n', ["line 2: 1 cells", "add what is missing"]),
        ('a,b\n5" pipe,x\n1,2,3\n', ["line 3: 3 cells"]),
        ("a,b\n1,x\r2,y\n", ["line 2: a carriage return"]),
        ("a,b\n1,x\0\n", ["line 2", "NUL"]),
        (b"a,b\n1,\x81\n", ["line 2", "0x81", "neither UTF-8 nor Windows-1252"]),
        (b"a,b\n1,\xc3\xa9\n2,\xe9\n", ["line 3", "0xe9", "the lines before are"]),
        ("a,b\n1,x\n".encode("utf-16"), ["line 1", "this is UTF-16", "UTF-8"]),
        ("", ["empty"]),
        ("\n\n", ["no column has a name"]),
        ("a,b\n", ["no rows"]),
        ("a,b,a\n1,2,3\n", ["two columns 'a' (the 1st and 3rd)", "rename"]),
        ("a,b,a,b\n1,2,3,4\n", ["line 1", "two columns 'a'", "two columns 'b' (the 2nd and 4th)"]),
        ("a,b\n1\n", ["line 2: 1 cells", "add what is missing"]),
        (",\n0,1\n", ["no column has a name", "header"]),
        ("1,2\n3,4\n", ["begins with numbers", "header"]),
        ("a,b\r1,x\r2,y\r", ["line 1"]),  # line ends of thirty years ago
    ],
)
def test_what_cannot_be_trusted_is_refused_by_place(text, parts):
    message = refusal(text)
    for part in parts:
        assert part in message, message
    assert "\n" not in message


def test_windows_1252_is_read_and_said(caplog):
    found = table("a,b\n1,x\n2,Köln\n3,“Zürich” €\n".encode("cp1252"))
    assert found.frame["b"].tolist() == ["x", "Köln", "“Zürich” €"]
    (said,) = caplog.messages
    assert "a.csv, line 3: byte 0xf6 is not UTF-8" in said
    caplog.clear()
    assert table("a,b\n1,Köln\n".encode("utf-8-sig")).frame["b"].tolist() == ["Köln"]
    assert not caplog.messages


def test_what_means_nothing_is_missing_and_lines_of_separators_are_rows():
    found = table("a,b\n1,x\n\nNA,?\n,\n-, n/a \n")
    assert found.frame["a"].isna().tolist() == [False, True, True, True]
    assert found.frame["b"].isna().tolist() == [False, True, True, True]
    assert [found.where(row) for row in (0, 1, 3)] == [f"a.csv, line {n}" for n in (2, 4, 6)]


def test_a_column_is_of_numbers_only_where_all_its_chunks_are(monkeypatch):
    monkeypatch.setattr(csv_file, "CELLS_AT_ONCE", 4)
    found = table("a,b\n1,1\n2,2\n3,x\n4.50,7\n").frame
    assert found["a"].dtype == np.float64
    assert found["b"].tolist() == ["1", "2", "x", "7"]
    assert found.index.tolist() == [2, 3, 4, 5]


def test_python_words_are_no_numbers():
    assert table("a\n1\n1_000\n").frame["a"].tolist() == ["1", "1_000"]


class PolarsLike:
    """What we ask of a frame that is not pandas'."""

    def __init__(self, columns: dict) -> None:
        self.columns = columns

    def to_dict(self, *, as_series: bool) -> dict:
        assert not as_series
        return self.columns


COLUMNS = {
    "n": [1, None, 3],
    "w": ["x", None, "y"],
    "t": [datetime.date(2024, 1, 1), None, datetime.date(2024, 1, 2)],
    "b": [True, False, True],
}


def frames():
    yield pd.DataFrame(COLUMNS)
    yield PolarsLike(COLUMNS)
    with contextlib.suppress(ImportError):
        import polars

        yield polars.DataFrame(COLUMNS)


@pytest.mark.parametrize("frame", list(frames()), ids=lambda frame: type(frame).__module__)
def test_frames_become_tables(frame):
    found = from_frame(frame).frame
    np.testing.assert_array_equal(found["n"], [1, np.nan, 3])
    assert found["w"].isna().tolist() == [False, True, False]
    assert found["t"].dt.day.tolist()[::2] == [1, 2]
    assert found["b"].tolist() == [1, 0, 1]


def test_a_missing_file_is_refused_by_name(tmp_path):
    with pytest.raises(DataError, match=r"nowhere\.csv"):
        CsvFile(tmp_path / "nowhere.csv")
    with pytest.raises(DataError, match="is a folder"):
        CsvFile(tmp_path)


def test_a_skipped_column_may_hold_anything():
    found = table("id,a\nx,1\n,2\n", skip=frozenset({"id"}))
    assert found.names == ("a",)


def test_chunks_hold_all_rows_once_whatever_their_size():
    text = "a,b\n" + "".join(f"{i},w{i % 3}\n" for i in range(100))
    for size in (1, 7, 100, 1000):
        file = CsvFile(io.BytesIO(text.encode()), label="a.csv")
        chunks = list(file.chunks(size))
        assert [v for chunk in chunks for v in chunk.frame["a"]] == list(range(100))
        assert max(map(len, chunks)) <= size


def test_chunks_of_wide_tables_have_fewer_rows(monkeypatch):
    monkeypatch.setattr(csv_file, "CELLS_AT_ONCE", 5000)
    columns = 50
    row = ",".join(["1"] * columns)
    text = ",".join(f"c{i}" for i in range(columns)) + "\n" + f"{row}\n" * 150
    sizes = [len(chunk) for chunk in CsvFile(io.BytesIO(text.encode())).chunks(1000)]
    assert sizes == [100, 50]


def test_rows_taken_out_of_a_table_know_their_lines():
    found = table("a,b\n1,x\n2,y\n3,x\n").take(np.array([2, 0]))
    assert found.frame["a"].tolist() == [3, 1]
    assert found.frame["b"].tolist() == ["x", "x"]
    assert found.where(0) == "a.csv, line 4"


class Endless:
    """A stream that never ends, and says how much of it was asked for."""

    def __init__(self, start: bytes, again: bytes) -> None:
        self.left, self.again, self.given = start, again, 0

    def readline(self, limit: int) -> bytes:
        line, end, self.left = self.left.partition(b"\n")
        more = self.again * (limit // len(self.again) if len(self.again) == 1 else 1)
        part = line + end or more
        self.given += len(part)
        return part


@pytest.mark.parametrize(
    "again", [b"x", 4000 * b"x" + b"\n"], ids=["no line end", "a row that never ends"]
)
def test_an_endless_row_is_given_up_in_bounded_memory(again):
    stream = Endless(b'a,b\n"', again)
    with pytest.raises(DataError, match=r"more than|quotes"):
        CsvFile(stream, label="endless").table()  # type: ignore[arg-type]
    assert stream.given <= 2 * LONGEST_ROW
