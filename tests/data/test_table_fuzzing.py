"""Thousands of damaged and hostile files: a table, or one clear DataError; never anything else."""

import csv
import io
import random
import string
import zipfile

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fuzzing import examples
from natural_langevin.data import DataError
from natural_langevin.data.csv_file import CsvFile
from natural_langevin.data.npz import read_npz
from natural_langevin.data.table import MISSING, Table

SETTINGS = settings(
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
MANY = settings(SETTINGS, max_examples=examples(250))
SEEDS = settings(SETTINGS, max_examples=examples(50))  # of many cases each
GOOD = b'age,town,"height, cm"\n31,Rome,1.7e2\n42,"Oslo ""N""",180\n7,Rome,99.5\n' * 2


def assert_table_or_refusal(data: bytes) -> Table | None:
    """The table, checked for what every table promises, or None where it was refused."""
    try:
        table = CsvFile(io.BytesIO(data), label="f.csv").table()
    except DataError as error:
        message = str(error)
        assert 0 < len(message) < 500
        return None
    assert len(table) > 0
    assert len(set(table.names)) == len(table.names)
    assert table.frame.index.is_monotonic_increasing
    assert all(c.dtype == np.float64 or c.dtype == "category" for _, c in table.frame.items())
    return table


@MANY
@given(st.binary(max_size=300))
def test_any_bytes(data):
    assert_table_or_refusal(data)


CELLS = st.one_of(
    st.text(max_size=8),
    st.floats().map(repr),
    st.sampled_from(
        ["", "NA", "nan", "inf", "-1e400", "1,5", "1_000", '"', "\0", "\r", "٣", "\ud7ff"]
    ),
)


@MANY
@given(st.lists(st.lists(CELLS, min_size=1, max_size=4), max_size=6), st.sampled_from(",;\t|"))
def test_any_cells_ragged_or_not(rows, separator):
    assert_table_or_refusal(
        "\n".join(separator.join(row) for row in rows).encode("utf-8", "replace")
    )


def damage(original: bytes, dice: random.Random) -> bytes:
    """Cut off, bits flipped, pieces put in, turned round or overwritten, one to three times."""
    damaged = bytearray(original)
    for _ in range(dice.randint(1, 3)):
        at, kind = dice.randrange(len(damaged) + 1), dice.randrange(6)
        if kind == 0:
            del damaged[at:]
        elif kind == 1 and at < len(damaged):
            damaged[at] ^= 1 << dice.randrange(8)
        elif kind == 2:
            damaged[at:at] = dice.choice([b'"', b"\0", b"\n", b",", b"\xff", b"\r"])
        elif kind == 3:
            damaged[at:at] = dice.randbytes(dice.randint(1, 8))
        elif kind == 4:
            damaged[at:] = damaged[at:][::-1]
        else:
            damaged[at : at + 4] = dice.choice([b"\xff" * 4, b"\0" * 4])
    return bytes(damaged)


@SEEDS
@given(st.integers(0, 2**32))
def test_damage_to_a_good_file(seed):
    dice = random.Random(seed)
    for _ in range(25):
        damaged = damage(GOOD, dice)
        assert_table_or_refusal(damaged)
        assert_table_or_refusal(damaged.decode("latin1").encode("utf-16"))


def number(text: str) -> bool:
    try:
        return bool(float(text)) or True
    except ValueError:
        return False


TEXT = st.text(string.ascii_letters + ' ,;"\n\té', min_size=1, max_size=10).filter(
    lambda t: t.strip() == t and t.lower() not in MISSING and not number(t)
)


@settings(SETTINGS, max_examples=examples(200))
@given(
    st.lists(st.tuples(st.floats(allow_nan=False, allow_infinity=False), TEXT), min_size=1),
)
def test_what_python_writes_is_read_back(rows):
    """Any finite numbers and any words, quoted as the csv module quotes them."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerows([("number", "word"), *((repr(n), w) for n, w in rows)])
    table = assert_table_or_refusal(out.getvalue().encode())
    assert table is not None
    np.testing.assert_array_equal(table.frame["number"], [n for n, _ in rows])
    assert table.frame["word"].tolist() == [w for _, w in rows]


@pytest.fixture(scope="module")
def good_npz() -> bytes:
    buffer = io.BytesIO()
    np.savez_compressed(buffer, x=np.arange(12.0).reshape(4, 3), y=np.array(["a", "b", "a", "b"]))
    return buffer.getvalue()


@pytest.fixture(scope="module")
def plain_npz() -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, x=np.arange(12.0).reshape(4, 3), y=np.arange(4))
    return buffer.getvalue()


def assert_arrays_or_refusal(path, data: bytes) -> dict | None:
    path.write_bytes(data)
    try:
        found = read_npz(path, ("x", "y"))
    except DataError as error:
        message = str(error)
        assert 0 < len(message) < 500
        return None
    for array in found.values():
        assert array.dtype.kind in "biufSU"
        assert array.nbytes <= max(1 << 26, 200 * len(data))
    return found


@SEEDS
@given(st.integers(0, 2**32))
def test_damage_to_a_good_archive(tmp_path, good_npz, plain_npz, seed):
    dice = random.Random(seed)
    for _ in range(15):
        for original in (good_npz, plain_npz):
            assert_arrays_or_refusal(tmp_path / "f.npz", damage(original, dice))


VALUES = st.recursive(
    st.one_of(st.integers(), st.booleans(), st.none(), st.text(max_size=5), st.floats()),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.tuples(inner, inner)),
    max_leaves=4,
)
DESCR = st.one_of(
    st.sampled_from(
        ["<f8", ">i4", "|b1", "<U3", "|S2", "|O", "<f16", "|V8", "<U0", "f8", "<M8[s]"]
    ),
    VALUES,
)
SHAPE = st.one_of(
    st.lists(st.one_of(st.integers(-2, 9), st.just(2**63), st.booleans()), max_size=9).map(tuple),
    VALUES,
)


@MANY
@given(
    descr=DESCR,
    shape=SHAPE,
    fortran=st.one_of(st.booleans(), VALUES),
    version=st.sampled_from([0, 1, 1, 1, 2, 3, 9]),
    data=st.binary(max_size=80),
    compressed=st.booleans(),
)
def test_any_header(tmp_path, descr, shape, fortran, version, data, compressed):
    header = repr({"descr": descr, "fortran_order": fortran, "shape": shape}).encode(
        "utf-8", "replace"
    )
    length = len(header).to_bytes(2 if version == 1 else 4, "little")
    member = b"\x93NUMPY" + bytes([version, 0]) + length + header + data
    buffer = io.BytesIO()
    kind = zipfile.ZIP_DEFLATED if compressed else zipfile.ZIP_STORED
    with zipfile.ZipFile(buffer, "w", kind) as archive:
        archive.writestr("x.npy", member)
        archive.writestr("y.npy", member)
    assert_arrays_or_refusal(tmp_path / "f.npz", buffer.getvalue())


@settings(SETTINGS, max_examples=examples(300))
@given(st.binary(max_size=200))
def test_any_bytes_are_no_archive(tmp_path, data):
    assert assert_arrays_or_refusal(tmp_path / "f.npz", b"PK\x03\x04" + data) is None
