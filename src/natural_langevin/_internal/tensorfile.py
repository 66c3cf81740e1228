"""Tensor files: safetensors, written piece by piece and read without being copied into memory.

The format is an 8-byte length, a JSON header {name: {dtype, shape, data_offsets}}, and the numbers.
The safetensors package reads it here; its writer wants the whole file in memory at once, which a
posterior that is larger than memory does not have, so the writer is ours.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from natural_langevin._internal.messages import bounded

DTYPES = {
    torch.float64: "F64", torch.int64: "I64", torch.float32: "F32", torch.int32: "I32",
    torch.float16: "F16", torch.bfloat16: "BF16", torch.int16: "I16", torch.int8: "I8",
    torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip
_BY_CODE = {code: dtype for dtype, code in DTYPES.items()}

HEADER_SUM, _BLANK_SUM, _NO_SUM = "header_sha256", b"1" * 64, "0" * 64

#: Tensors beyond this many bytes are written row by row.
PIECE = 1 << 26

#: dtype and shape.
Spec = tuple[torch.dtype, tuple[int, ...]]


class StorageError(ValueError):
    """A file that cannot be read or written, or holds something else than it should."""

    def __init__(self, message: str = "") -> None:
        super().__init__(bounded(message))  # a file may hold names of any length


class WriteError(StorageError, OSError):
    """A file could not be written: the disk is full, or the folder may not be written to."""


@contextlib.contextmanager
def writing(what: str, state: Callable[[], str] = str, *, remedy: str = "") -> Iterator[None]:
    """Turns the system's message of a full disk or a read-only folder into a sentence.

    ``state()`` says what is there after the failure, and is asked only then."""
    try:
        yield
    except WriteError:
        raise
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        parts = [state(), "Free some space" if full else "", remedy]
        text = ". ".join(part for part in parts if part)
        raise WriteError(f"cannot write {what}: {error.strerror or error}. {text}") from error


def spec(tensor: Tensor) -> Spec:
    """What a file says of a tensor: its dtype and its shape."""
    return tensor.dtype, tuple(tensor.shape)


def size_in_bytes(of: Spec) -> int:
    """How many bytes the tensor's numbers take."""
    return of[0].itemsize * math.prod(of[1])


@dataclass(frozen=True)
class FileLayout:
    """Where everything is in a file: ``header``, then tensor ``name`` from byte ``start[name]``."""

    header: bytes
    start: dict[str, int]
    size: int


def layout(specs: Mapping[str, Spec], metadata: Mapping[str, str]) -> FileLayout:
    """Wide dtypes first, and a header of a multiple of eight bytes: every tensor is aligned."""
    entries: dict[str, Any] = {"__metadata__": dict(metadata)}
    start, offset = {}, 0
    for name in sorted(specs, key=lambda name: (-specs[name][0].itemsize, name)):
        stop = offset + size_in_bytes(specs[name])
        code, shape = DTYPES[specs[name][0]], list(specs[name][1])
        entries[name] = {"dtype": code, "shape": shape, "data_offsets": [offset, stop]}
        start[name], offset = offset, stop
    text = json.dumps(entries).encode()
    text += b" " * (-len(text) % 8)
    header = len(text).to_bytes(8, "little") + text
    return FileLayout(header, {k: v + len(header) for k, v in start.items()}, len(header) + offset)


def write_tensors(
    handle: BinaryIO, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]
) -> None:
    """Writes a whole file; its metadata also gets ``sha256``, of the numbers, and
    ``header_sha256``, of the header without that one.

    The header stands before the numbers whose sum it holds, so both are written in afterwards."""
    plan = summed_layout({k: spec(v) for k, v in tensors.items()}, metadata)
    handle.write(plan.header)
    digest = hashlib.sha256()
    for name in plan.start:  # in the order of the file
        for piece in pieces(tensors[name]):
            digest.update(piece)
            handle.write(piece)
    _write_sums(handle, plan, digest.hexdigest())


def summed_layout(specs: Mapping[str, Spec], metadata: Mapping[str, str]) -> FileLayout:
    """``layout`` with room for the two sums in the header."""
    return layout(specs, {"sha256": _NO_SUM, HEADER_SUM: _BLANK_SUM.decode(), **metadata})


def add_sums(path: Path, plan: FileLayout) -> None:
    """Completes a file whose numbers have been written to their places."""
    with path.open("r+b") as handle:
        handle.seek(len(plan.header))
        _write_sums(handle, plan, hashlib.file_digest(handle, "sha256").hexdigest())


def _write_sums(handle: BinaryIO, plan: FileLayout, numbers: str) -> None:
    header = plan.header.replace(_NO_SUM.encode(), numbers.encode(), 1)
    handle.seek(0)
    handle.write(header.replace(_BLANK_SUM, _header_sum(header), 1))


def write_at(file: int, data: memoryview, at: int) -> None:
    """Writes all of ``data`` at this offset; one ``os.pwrite`` may write only a part of it."""
    while data:
        written = os.pwrite(file, data, at)
        data, at = data[written:], at + written


def _header_sum(header: bytes) -> bytes:
    return hashlib.sha256(header).hexdigest().encode()


def pieces(tensor: Tensor) -> Iterator[memoryview]:
    """A tensor's bytes in order, in pieces that fit into memory beside it."""
    if tensor.nbytes > PIECE and tensor.ndim > 1:
        for row in tensor:
            yield from pieces(row)
    else:
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        flat = flat.as_strided(flat.shape, (1,))  # a single number may be left with any stride
        yield flat.view(torch.uint8).numpy().data


@contextlib.contextmanager
def opened(path: Path) -> Iterator[Any]:
    """An open file as safetensors gives it. Opening compares the sizes in the header with the
    size of the file, so whatever a header claims, nothing is allocated for it."""
    try:
        if not path.is_file():  # a pipe, or a device, could be read forever
            raise StorageError(f"{path.name} is missing or is not a plain file")
        with contextlib.ExitStack() as closing:
            try:
                file = closing.enter_context(safe_open(path, framework="pt"))
            except RuntimeError as error:  # torch's word for a file that was removed meanwhile
                raise StorageError(f"cannot read {path.name}: {error}") from error
            yield file
    except (SafetensorError, OSError) as error:
        raise StorageError(f"cannot read {path.name}: {error}") from error


def specs_in(file: Any) -> dict[str, Spec]:
    """What an open file holds."""
    found = {}
    for name in file.keys():  # noqa: SIM118 (not a dict)
        part = file.get_slice(name)
        if part.get_dtype() not in _BY_CODE:
            raise StorageError(f"{name!r} has the unexpected dtype {part.get_dtype()}")
        found[name] = _BY_CODE[part.get_dtype()], tuple(part.get_shape())
    return found


def check_specs(path: Path, found: Mapping[str, Spec], expected: Mapping[str, Spec]) -> None:
    """Raises StorageError where a file's names, dtypes and shapes are not the expected ones."""
    if set(found) != set(expected):
        missing = sorted(set(expected) - set(found))[:4]
        extra = sorted(set(found) - set(expected))[:4]
        raise StorageError(
            f"{path.name} does not hold the expected tensors: missing {missing}, unexpected {extra}"
        )
    for name, (dtype, shape) in expected.items():
        if found[name] != (dtype, shape):
            raise StorageError(
                f"{path.name}: {name} is {found[name][0]} {found[name][1]}, and should be "
                f"{dtype} {shape}"
            )


def mapped(path: Path, expected: Mapping[str, Spec]) -> dict[str, Tensor]:
    """The tensors of a file, memory-mapped: read from the disk when they are looked at.

    The mapping is private: changing such a tensor does not change the file."""
    with opened(path) as file:
        check_specs(path, specs_in(file), expected)
        try:
            return {name: file.get_tensor(name) for name in expected}
        except RuntimeError as error:  # numbers that do not start at a multiple of their size
            raise StorageError(f"cannot read {path.name}: {error}") from error


def check_header(path: Path) -> None:
    """Refuses a file whose names, shapes or metadata are not those that were written."""
    with opened(path) as file:
        noted = (file.metadata() or {}).get(HEADER_SUM, "").encode()
    with path.open("rb") as handle:
        header = handle.read(8)
        header += handle.read(int.from_bytes(header, "little"))
    if not noted or _header_sum(header.replace(noted, _BLANK_SUM, 1)) != noted:
        raise StorageError(
            f"{path.name} is damaged: its header differs from the one that was written"
        )


def check_sum(path: Path) -> None:
    """Refuses a file whose numbers are not those that ``write_tensors`` wrote."""
    with opened(path) as file:
        noted = (file.metadata() or {}).get("sha256")
    with path.open("rb") as handle:
        header = int.from_bytes(handle.read(8), "little")
        handle.seek(8 + header)
        found = hashlib.file_digest(handle, "sha256").hexdigest()
    if found != noted:
        raise StorageError(
            f"{path.name} is damaged: its values differ from those that were written"
        )


def reserve(handle: BinaryIO, size: int) -> None:
    """Claims the space on the disk now, so that a full disk is noticed before the first step."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(handle.fileno(), 0, size)
    else:
        handle.truncate(size)
