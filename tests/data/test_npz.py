"""NPZ files: what NumPy writes is read exactly; what could harm is refused before it can."""

import io
import os
import struct
import tracemalloc
import zipfile

import numpy as np
import pytest

from natural_langevin.data import DataError
from natural_langevin.data.npz import read_npz

RNG = np.random.default_rng(0)
ARRAYS = {
    "float64": RNG.normal(size=(5, 3)),
    "float32, big-endian": RNG.normal(size=(5, 3)).astype(">f4"),
    "float16, Fortran": np.asfortranarray(RNG.normal(size=(4, 3)).astype(np.float16)),
    "bytes of pixels": RNG.integers(0, 255, size=(3, 4, 4), dtype=np.uint8),
    "bool": RNG.normal(size=7) > 0,
    "int64": RNG.integers(-9, 9, size=(6,)),
    "text": np.array(["setosa", "virginica", "é"]),
    "bytes": np.array([b"a", b"bc"]),
    "empty": np.empty((0, 3)),
    "scalar": np.array(3.5),
}


def refusal(path, wanted=("x",)) -> str:
    with pytest.raises(DataError) as caught:
        read_npz(path, wanted)
    return str(caught.value)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@pytest.mark.parametrize("name", ARRAYS)
def test_what_numpy_writes_is_read_exactly(tmp_path, save, name):
    path = tmp_path / "a.npz"
    save(path, x=ARRAYS[name], other=np.arange(3))
    found = read_npz(path, ["x"])["x"]
    assert found.dtype == ARRAYS[name].dtype
    np.testing.assert_array_equal(found, ARRAYS[name])


def archive(path, members: dict[str, bytes], compression=zipfile.ZIP_STORED) -> None:
    with zipfile.ZipFile(path, "w", compression) as file:
        for name, content in members.items():
            file.writestr(name, content)


def npy(header: str, data: bytes = b"") -> bytes:
    text = header.encode("latin1")
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + data


class Trap:
    """Unpickling this would make a folder."""

    def __init__(self, path) -> None:
        self.path = str(path)

    def __reduce__(self):
        return os.mkdir, (self.path,)


def test_a_pickle_inside_is_never_opened(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.array([Trap(tmp_path / "sprung")], dtype=object))
    assert "pickle" in refusal(tmp_path / "a.npz")
    assert not (tmp_path / "sprung").exists()
    np.load(tmp_path / "a.npz", allow_pickle=True)["x"]  # the trap is a real one
    assert (tmp_path / "sprung").exists()


HUGE = 10**15


@pytest.mark.parametrize(
    "header",
    [
        f"{{'descr': '<f8', 'fortran_order': False, 'shape': ({HUGE},), }}",
        f"{{'descr': '<f8', 'fortran_order': False, 'shape': ({HUGE}, {HUGE}), }}",
        f"{{'descr': '<f8', 'fortran_order': False, 'shape': (0, {10**30}), }}",
        "{'descr': '<U9999', 'fortran_order': False, 'shape': (99999999,), }",
        f"{{'descr': '<U0', 'fortran_order': False, 'shape': ({HUGE},), }}",
        "{'descr': '<f8', 'fortran_order': False, 'shape': (-1,), }",
        "{'descr': '<f8', 'fortran_order': False, 'shape': (True,), }",
        "{'descr': '<f8', 'fortran_order': False, 'shape': (False,), }",
        "{'descr': '<f8', 'fortran_order': False, 'shape': 3, }",
        "{'descr': '<f8', 'fortran_order': 1, 'shape': (0,), }",
        "{'descr': [('a', '<f8')], 'fortran_order': False, 'shape': (0,), }",
        "{'descr': '|O', 'fortran_order': False, 'shape': (0,), }",
        "{'descr': '<c16', 'fortran_order': False, 'shape': (0,), }",
        "{'descr': '<M8[ns]', 'fortran_order': False, 'shape': (0,), }",
        "{'descr': '<f8', 'fortran_order': False, 'shape': (0,), 'more': 1}",
        "{'descr': '<f8', 'fortran_order': False}",
        "{'descr': __import__('os').getcwd(), 'fortran_order': False, 'shape': (0,)}",
        "(" * 4000,
        "{'a': '\\d'}",
        "",
        "9" * 4096,
    ],
)
def test_a_hostile_header_takes_no_memory(tmp_path, header):
    archive(tmp_path / "a.npz", {"x.npy": npy(header, b"\0" * 16)})
    tracemalloc.start()
    message = refusal(tmp_path / "a.npz")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 22
    assert len(message) < 400


def test_a_bomb_is_not_unpacked(tmp_path):
    size = 1 << 27  # 128 MiB of zeros in 128 KiB
    header = f"{{'descr': '|u1', 'fortran_order': False, 'shape': ({size},), }}"
    archive(tmp_path / "a.npz", {"x.npy": npy(header, bytes(size))}, zipfile.ZIP_DEFLATED)
    assert (tmp_path / "a.npz").stat().st_size < 1 << 20
    tracemalloc.start()
    assert "claims" in refusal(tmp_path / "a.npz")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 22


def test_compressible_data_of_a_usual_size_are_no_bomb(tmp_path):
    np.savez_compressed(tmp_path / "a.npz", x=np.zeros((1000, 1000)))
    assert read_npz(tmp_path / "a.npz", ["x"])["x"].shape == (1000, 1000)


def test_the_size_said_in_the_archive_is_compared_with_the_file(tmp_path):
    """A stored member that claims more bytes than the whole file has."""
    np.savez(tmp_path / "a.npz", x=np.arange(100.0))
    blob = (tmp_path / "a.npz").read_bytes()
    size = struct.pack("<I", 100 * 8 + 128)
    assert blob.count(size) >= 2
    (tmp_path / "b.npz").write_bytes(blob.replace(size, struct.pack("<I", 0x7FFFFFFF)))
    tracemalloc.start()
    refusal(tmp_path / "b.npz")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 22


def test_other_broken_archives_are_refused_with_a_remedy(tmp_path):
    path = tmp_path / "a.npz"
    archive(path, {"z.npy": npy("")})
    assert "it holds z" in refusal(path)
    archive(path, {"x.npy": b"not an array"})
    assert "not a .npy" in refusal(path)
    archive(path, {"x.npy": npy("{}", b"")}, zipfile.ZIP_BZIP2)
    assert "np.savez" in refusal(path)
    with (
        pytest.warns(UserWarning, match="Duplicate"),
        zipfile.ZipFile(path, "w") as file,
    ):
        [file.writestr("x.npy", b"") for _ in range(2)]
    assert "twice" in refusal(path)
    path.write_bytes(b"a,b\n1,2\n")
    assert "np.savez" in refusal(path)
    assert "nowhere" in refusal(tmp_path / "nowhere.npz")
    buffer = io.BytesIO()
    np.savez(buffer, x=np.arange(1000.0))
    damaged = bytearray(buffer.getvalue())
    damaged[len(damaged) // 2] ^= 1
    path.write_bytes(damaged)
    assert "CRC" in refusal(path)
