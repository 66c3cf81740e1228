"""CSV files as people write them: what is read, and what is refused with line and column."""

import io

import numpy as np
import pytest

from natural_langevin.data import DataError
from natural_langevin.data.csv_file import CELLS_AT_ONCE, LONGEST_ROW, CsvFile
from natural_langevin.data.table import MOST_LEVELS, Table


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
    np.testing.assert_array_equal(found.numbers("age"), [31, -25, 7])
    assert found.words("town") == ["Rome", "Oslo", "Rome"]
    assert found.words("age") == ["31", "-2.5e1", "7"]


@pytest.mark.parametrize(
    "text",
    [
        "a,b\r\n1,x\r\n2,y\r\n",  # Windows
        "a;b\n1;x\n2;y\n",  # a European spreadsheet
        "a\tb\n1\tx\n2\ty",  # tabs, no newline at the end
        "\ufeffa,b\n1,x\n\n2,y\n\n",  # a byte-order mark, blank lines
        '"a", b \n"1",x\n2,"y"\n',  # quotes and spaces
    ],
)
def test_the_common_ways_of_writing_a_table_read_the_same(text):
    found = table(text)
    assert found.names == ("a", "b")
    np.testing.assert_array_equal(found.numbers("a"), [1, 2])
    assert found.words("b") == ["x", "y"]


def test_quoted_cells_may_hold_separators_quotes_and_line_ends():
    found = table('a,b\n1,"x, ""y""\nz"\n2,w\n')
    assert found.words("b") == ['x, "y"\nz', "w"]
    assert found.where(1) == "a.csv, line 4"


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("a,b\n1,x\n,y\n", ["line 3", "'a'", "empty"]),
        ("a,b\n1,x\nNA,y\n", ["line 3", "'a'", "missing (NA)"]),
        ("a,b\n1,x\n2,n/a\n", ["line 3", "'b'", "missing (n/a)"]),
        ("a,b\n1,x\nnan,y\n", ["line 3", "'a'", "missing"]),
        ("a,b\n1,x\n-inf,y\n", ["line 3", "'a'", "not finite"]),
        ("a,b\n1,x\n1e999,y\n", ["line 3", "'a'", "not finite"]),
        ('a,b\n"1,5",x\n', ["line 2", "'a'", "decimals with a point"]),
        ("a;b\n1.000,5;x\n", ["line 2", "'a'", "thousands"]),
        ("a,b\n1,x,3\n", ["line 2", "3 cells", "2"]),
        ("a,b\n1\n", ["line 2", "1 cells"]),
        ('a,b\n1,"x\n', ["line 2", "quotes"]),
        ('a,b\n1,"x"y\n', ["line 2", "quotes"]),
        ("a,b\n1,x\0\n", ["line 2", "NUL"]),
        (b"a,b\n1,\x81\n", ["line 2", "0x81", "neither UTF-8 nor Windows-1252"]),
        (b"a,b\n1,\xc3\xa9\n2,\xe9\n", ["line 3", "0xe9", "the lines before are"]),
        ("a,b\n1,x\n".encode("utf-16"), ["line 1", "this is UTF-16", "UTF-8"]),
        ("", ["empty"]),
        ("\n\n", ["no name"]),
        ("a,b\n", ["no rows"]),
        ("a,b,a\n1,2,3\n", ["two columns 'a'"]),
        (",a\n0,1\n", ["column 1 has no name", "index=False"]),
        ("1,2\n3,4\n", ["begins with numbers", "header"]),
        ("a\n" + "x" * 200_000 + "\n", ["line 2", "field"]),
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
    assert found.words("b") == ["x", "Köln", "“Zürich” €"]
    (said,) = caplog.messages
    assert "a.csv, line 3: byte 0xf6 is not UTF-8" in said
    caplog.clear()
    assert table("a,b\n1,Köln\n".encode("utf-8-sig")).words("b") == ["Köln"]
    assert not caplog.messages


def test_decimal_commas_are_read_where_somebody_says_so():
    text = "a;b\n1,5;x,y\n-,25e1;p,q,r\n7;z\n"
    found = CsvFile(io.BytesIO(text.encode()), decimal_comma=True).table()
    np.testing.assert_array_equal(found.numbers("a"), [1.5, -2.5, 7])
    assert found.words("b") == ["x,y", "p,q,r", "z"]
    with pytest.raises(DataError, match="--decimal-comma"):
        table(text)


def test_rows_that_lack_a_cell_are_left_out_where_somebody_says_so():
    text = "a,b,id\n1,x,\n,y,1\n3,NA,2\n4,z,3\n"
    file = CsvFile(io.BytesIO(text.encode()))
    found = file.table(skip=frozenset({"id"}), skip_missing=True)
    np.testing.assert_array_equal(found.numbers("a"), [1, 4])
    assert file.skipped == 2
    assert found.where(1).endswith("line 5")
    assert "--skip-missing" in refusal(text)
    with pytest.raises(DataError, match="every one of its 2 rows lacks a cell"):
        table("a,b\n1,\n,2\n", skip_missing=True)


def test_a_missing_file_is_refused_by_name(tmp_path):
    with pytest.raises(DataError, match=r"nowhere\.csv"):
        CsvFile(tmp_path / "nowhere.csv")
    with pytest.raises(DataError, match="directory"):
        CsvFile(tmp_path)


def test_a_skipped_column_may_hold_anything():
    found = table("id,a\nx,1\n,2\n", skip=frozenset({"id"}))
    assert found.names == ("a",)


def test_a_stray_word_among_numbers_is_remembered_with_its_place():
    assert table("a\n1\n2\nthree\n").columns["a"].odd == "'three' (a.csv, line 4)"
    assert table("a\nx\ny\n").columns["a"].odd is None
    many = "".join(f"{i}\n" for i in range(MOST_LEVELS + 5))
    assert "'three' (a.csv" in refusal(f"a\n{many}three\n")
    words = "".join(f"w{i}\n" for i in range(MOST_LEVELS + 5))
    assert "--drop a" in refusal(f"a\n{words}")


def test_chunks_hold_all_rows_once_whatever_their_size():
    text = "a,b\n" + "".join(f"{i},w{i % 3}\n" for i in range(100))
    for size in (1, 7, 100, 1000):
        file = CsvFile(io.BytesIO(text.encode()), label="a.csv")
        chunks = list(file.chunks(size))
        assert [v for chunk in chunks for v in chunk.numbers("a")] == list(range(100))
        assert max(map(len, chunks)) <= size


def test_chunks_of_wide_tables_have_fewer_rows():
    columns = 5000
    row = ",".join(["1"] * columns)
    text = ",".join(f"c{i}" for i in range(columns)) + "\n" + f"{row}\n" * 150
    sizes = [len(chunk) for chunk in CsvFile(io.BytesIO(text.encode())).chunks(1000)]
    assert sizes == [100, 50]
    assert sizes[0] * columns <= CELLS_AT_ONCE


def test_rows_taken_out_of_a_table_know_their_lines():
    found = table("a,b\n1,x\n2,y\n3,x\n").take(np.array([2, 0]))
    np.testing.assert_array_equal(found.numbers("a"), [3, 1])
    assert found.words("b") == ["x", "x"]
    assert found.where(0) == "a.csv, line 4"


class Endless:
    """A stream that never ends, and says how much of it was asked for."""

    def __init__(self, start: bytes, again: bytes) -> None:
        self.left, self.again, self.given = start, again, 0

    def readline(self, limit: int) -> bytes:
        part = self.left or self.again * (limit // len(self.again) if len(self.again) == 1 else 1)
        self.left = b""
        self.given += len(part)
        return part


@pytest.mark.parametrize("again", [b"x", b'","\n'], ids=["no line end", "a row that never ends"])
def test_an_endless_row_is_given_up_in_bounded_memory(again):
    stream = Endless(b'a,b\n"', again)
    with pytest.raises(DataError, match=r"more than|quotes"):
        CsvFile(stream, label="endless").table()  # type: ignore[arg-type]
    assert stream.given <= 2 * LONGEST_ROW
