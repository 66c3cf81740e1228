"""Damaged and hostile files: ``StorageError`` and nothing else, whatever is in them.

While a file is read no code may be compiled, imported or unpickled, no file opened for writing, no
process started; the address space is limited to what the process has and a little more, so that an
allocation that believes a header fails the test; and no case may compute for seconds, or wait.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import json
import math
import os
import pickle
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import small_run
from fuzzing import examples
from natural_langevin import Posterior, StorageError
from natural_langevin._internal.checked_json import checksum
from natural_langevin.posterior import manifest
from natural_langevin.run.checkpoint import CheckpointError, RunCheckpoint
from reader_guard import guarded
from small_run import network

CASES = settings(
    max_examples=examples(80),
    deadline=None,  # see guarded: a busy machine is not a slow reader
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
MODEL = network()
CALL = pickle.dumps(print)


def test_the_guard_sees_what_it_should():
    def look(deed) -> None:
        with guarded():
            deed()

    with pytest.raises(RuntimeError, match="memory"):
        look(lambda: torch.empty(1 << 32, dtype=torch.uint8))
    for deed in (lambda: eval("1 + 1"), lambda: os.system("true"), lambda: pickle.loads(CALL)):
        with pytest.raises(AssertionError, match="seen"):
            look(deed)


class Saved:
    """A saved posterior whose files can be replaced for one case."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.posterior = folder, small_run.sample()
        self.posterior.save(folder)
        self.files = {path.name: path.read_bytes() for path in folder.iterdir()}
        self.words = json.loads(self.files[manifest.NAME])
        self.names = {key: self.words[key]["name"] for key in ("samples", "rest")}
        assert self.refused({}) is None  # and loads what is loaded lazily
        assert self.refused({}, memory_map=True) is None

    def refused(self, changes: dict[str, bytes], memory_map: bool = False) -> str | None:
        """The message with which the folder is refused, or None if it is accepted."""
        for name, content in changes.items():
            (self.folder / name).write_bytes(content)
        try:
            with guarded():
                found = Posterior.load(self.folder, MODEL, memory_map=memory_map)
            assert found.chains == 2
            assert found.draws == 8
            return None
        except StorageError as error:
            return str(error)
        finally:
            for name in changes:
                (self.folder / name).write_bytes(self.files[name])

    def same_words(self, name: str, content: bytes) -> bool:
        """White space in a manifest is not content."""
        try:
            return name == manifest.NAME and json.loads(content) == self.words
        except ValueError:
            return False

    def signed(self, words: Any) -> bytes:
        """A manifest with the right checksum, as one who knows the format would forge it."""
        if isinstance(words, dict):
            with contextlib.suppress(ValueError, RecursionError):
                words["checksum"] = checksum(words)
        return json.dumps(words).encode()

    def forged(self, kind: str, content: bytes) -> dict[str, bytes]:
        """A file of tensors with a manifest that vouches for its contents."""
        words = copy.deepcopy(self.words)
        words[kind]["sha256"] = hashlib.sha256(content).hexdigest()
        return {self.names[kind]: content, manifest.NAME: self.signed(words)}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    return Saved(tmp_path_factory.mktemp("saved"))


kinds = st.sampled_from(["samples", "rest"])
anywhere = st.floats(0, 1, exclude_max=True)


@CASES
@given(st.sampled_from(["samples", "rest", "words"]), anywhere, st.integers(0, 7))
def test_every_flipped_bit_is_noticed(saved, kind, where, bit):
    name = saved.names.get(kind, manifest.NAME)
    content = bytearray(saved.files[name])
    content[int(where * len(content))] ^= 1 << bit
    changed = bytes(content)
    if saved.same_words(name, changed):
        return
    assert saved.refused({name: changed}) is not None
    assert saved.refused({name: changed}, memory_map=True) is not None


@CASES
@given(st.sampled_from(["samples", "rest", "words"]), anywhere, st.binary(max_size=40))
def test_cut_and_continued_files_are_refused(saved, kind, where, more):
    name = saved.names.get(kind, manifest.NAME)
    content = saved.files[name]
    for changed in (content[: int(where * len(content))] + more, content + more):
        if changed != content and not saved.same_words(name, changed):
            assert saved.refused({name: changed}) is not None
            assert saved.refused({name: changed}, memory_map=True) is not None


@CASES
@given(kinds, anywhere, anywhere, st.integers(1, 400), st.booleans())
def test_reordered_contents_are_refused(saved, kind, one, other, length, vouched):
    content = bytearray(saved.files[saved.names[kind]])
    a, b = sorted(int(where * (len(content) - length)) for where in (one, other))
    b = max(b, min(a + length, len(content) - length))
    first, second = content[a : a + length], content[b : b + length]
    content[a : a + length], content[b : b + length] = second, first
    if bytes(content) == saved.files[saved.names[kind]]:
        return
    assert saved.refused({saved.names[kind]: bytes(content)}) is not None
    # Vouched for, other numbers are simply other numbers; a broken header is still refused.
    saved.refused(saved.forged(kind, bytes(content)))
    saved.refused(saved.forged(kind, bytes(content)), memory_map=True)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", ["samples/2.weight", "mean/0.bias", "last/2.bias"])
def test_vouched_numbers_that_are_none_are_refused(saved, name, value):
    group, _, tensor = name.partition("/")
    kind = "samples" if group == "samples" else "rest"
    content = bytearray(saved.files[saved.names[kind]])
    entry = header_of(bytes(content))[0][tensor if kind == "samples" else name]
    at = 8 + int.from_bytes(content[:8], "little") + entry["data_offsets"][1] - 4  # the last one
    content[at : at + 4] = struct.pack("<f", value)
    for memory_map in (False, True):
        message = saved.refused(saved.forged(kind, bytes(content)), memory_map)
        assert message is not None
        assert f"{name} holds NaN or infinite values" in message


@pytest.mark.parametrize("levels", [10**12, 10**9, 1.5, "2", None, -3, True])
def test_a_likelihood_of_absurd_size_is_not_built(saved, levels):
    words = copy.deepcopy(saved.words)
    words["likelihood"] = {"name": "Ordinal", "arguments": {"levels": levels}}
    message = saved.refused({manifest.NAME: saved.signed(words)})
    assert message is not None
    assert "the saved likelihood Ordinal is malformed: levels must be an integer" in message


def test_a_model_in_which_nothing_is_trainable_is_refused(saved):
    with pytest.raises(StorageError, match="the model lacks"):
        Posterior.load(saved.folder, network().requires_grad_(False))


def test_a_mapped_file_that_is_written_to_is_noticed(saved):
    path = saved.folder / saved.names["samples"]
    found = Posterior.load(saved.folder, MODEL, memory_map=True)
    x = small_run.data()[0]
    before = found.predict(x).mean
    os.utime(path, ns=(1, 1))
    with pytest.raises(StorageError, match="was changed while it was in use"):
        found.predict(x)
    again = Posterior.load(saved.folder, MODEL, memory_map=True)
    assert torch.equal(again.predict(x).mean, before)


def test_exchanged_files_are_refused(saved):
    one, other = saved.names.values()
    exchanged = {one: saved.files[other], other: saved.files[one]}
    for memory_map in (False, True):
        assert saved.refused(exchanged, memory_map) is not None


big = st.sampled_from([2**31, 2**53, 2**62, 2**63, 2**64 - 1, 2**64, 10**30])
sizes = st.one_of(st.integers(-3, 9), big, st.just(-(2**63)), st.floats(), st.none(), st.text())
dtypes = st.sampled_from(["F32", "F64", "I64", "BF16", "U8", "BOOL", "F8_E4M3", "F4", "O", "", 3])
entries = st.fixed_dictionaries(
    {},
    optional={
        "dtype": dtypes,
        "shape": st.one_of(st.lists(sizes, max_size=6), sizes),
        "data_offsets": st.one_of(st.lists(sizes, max_size=3), sizes),
        "other": sizes,
    },
)


def header_of(content: bytes) -> tuple[dict[str, Any], bytes]:
    length = int.from_bytes(content[:8], "little")
    return json.loads(content[8 : 8 + length]), content[8 + length :]


def with_header(text: bytes, numbers: bytes, length: int | None = None) -> bytes:
    return (len(text) if length is None else length).to_bytes(8, "little") + text + numbers


def meaning(header: dict[str, Any]) -> dict[str, Any]:
    """What a header says of the tensors: other fields are ignored, as the format has it."""
    fields = ("dtype", "shape", "data_offsets")
    tensors = {k: v for k, v in header.items() if k != "__metadata__"}
    return {k: {f: v.get(f) for f in fields} for k, v in tensors.items()}


@CASES
@given(kinds, st.data())
def test_hostile_headers_are_refused(saved, kind, data):
    original, numbers = header_of(saved.files[saved.names[kind]])
    header = copy.deepcopy(original)
    name = data.draw(st.sampled_from(sorted(header)))
    entry = data.draw(entries)
    if data.draw(st.booleans()):
        entry = header[name] | entry  # one field alone
    header[data.draw(st.sampled_from([name, "../" + name, "/etc/passwd", "", "\0", "é"]))] = entry
    text = json.dumps(header).encode()
    length = data.draw(st.sampled_from([None, None, 0, len(text) - 1, 2**31, 2**63, 2**64 - 1]))
    changed = with_header(text, numbers, length)
    for memory_map in (False, True):
        message = saved.refused(saved.forged(kind, changed), memory_map)
        assert message is not None or (length is None and meaning(header) == meaning(original))


@pytest.mark.parametrize(
    "text",
    [
        b'{"a":' * 100_000,
        b"[" * 100_000,
        b'{"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]},'
        b' "a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}',
        b'{"a": {"dtype": "F32", "shape": [1e400], "data_offsets": [0, 4]}}',
        b'{"a": {"dtype": "F32", "shape": [NaN], "data_offsets": [0, 4]}}',
        b'{"a": {"dtype": "F32", "shape": [-1], "data_offsets": [4, 0]}}',
        b'{"a": {"dtype": "F32", "shape": [4294967296, 4294967296], "data_offsets": [0, 0]}}',
        b'{"a": {"dtype": "U8", "shape": [1099511627776], "data_offsets": [0, 1099511627776]}}',
        b'{"__metadata__": {"a": 1}}',
        b'{"__metadata__": null}',
        b"\xff\xfe",
        b"",
        b"null",
        b"1" * 10_000,
    ],
    ids=range(14),
)
def test_headers_made_to_hurt_are_refused(saved, text):
    for kind in ("samples", "rest"):
        for memory_map in (False, True):
            changed = saved.forged(kind, with_header(text, b"\0" * 4))
            assert saved.refused(changed, memory_map) is not None


def paths_in(words: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place in a tree of dicts and lists."""
    yield path
    if isinstance(words, (dict, list)):
        for key, value in words.items() if isinstance(words, dict) else enumerate(words):
            yield from paths_in(value, (*path, key))


scalars = st.one_of(
    st.none(), st.booleans(), st.integers(), big, st.floats(), st.text(max_size=20),
    st.sampled_from(["../x", "/etc/passwd", "samples-0123456789abcdef.safetensors/..", "\0",
                     "\ud800", "torch.float32", "torch.float64", "torch.load", "rmse",
                     "__import__('os')"]),
)  # fmt: skip
trees = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=8,
)


@CASES
@given(st.data())
def test_forged_words_are_refused_or_mean_what_they_say(saved, data):
    """One place of the manifest replaced by anything, with the right checksum."""
    words = copy.deepcopy(saved.words)
    path = data.draw(st.sampled_from(list(paths_in(words))))
    value = data.draw(trees)
    if not path:
        words = value
    else:
        inner = words
        for key in path[:-1]:
            inner = inner[key]
        inner[path[-1]] = value
    harmless = path and path[0] in ("config", "version", "checksum", "likelihood")
    harmless = harmless or path[:2] == ("model", "torch")
    for memory_map in (False, True):
        message = saved.refused({manifest.NAME: saved.signed(words)}, memory_map)
        assert message is not None or harmless or words == saved.words


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("model", "sampled", "0.weight", 1), None),
        (("model", "sampled", "0.weight"), "F32"),
        (("model", "sampled", "0.weight", 1), [[]]),
        (("model", "text"), repr(MODEL) + "\n"),
        (("model", "fixed"), {"0.weight": 1}),
        (("likelihood", "arguments"), [1]),
        (("likelihood", "arguments"), {"self": 1}),
        (("likelihood", "name"), ["Categorical"]),
        (("samples", "name"), "draws-0123456789abcdef.safetensors"),
        (("samples", "tensors"), {}),
        (("rest", "tensors", "run/trace", 1), []),
        (("rest", "tensors", "run/diverged", 1), [10**30]),
    ],
)
def test_words_that_were_seen_to_hurt_are_refused(saved, path, value):
    words = copy.deepcopy(saved.words)
    inner = words
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    for memory_map in (False, True):
        assert saved.refused({manifest.NAME: saved.signed(words)}, memory_map) is not None


@CASES
@given(
    st.sampled_from(["samples", "rest", "words"]),
    st.one_of(st.binary(max_size=200), st.text(max_size=200).map(str.encode)),
)
def test_any_bytes_in_the_place_of_a_file_are_refused(saved, kind, content):
    name = saved.names.get(kind, manifest.NAME)
    assert saved.refused({name: content}) is not None
    if kind != "words":
        assert saved.refused(saved.forged(kind, content)) is not None


@pytest.mark.parametrize(
    "text",
    [
        "[" * 200_000,
        '{"a":' * 200_000,
        '{"format": 2, "checksum": NaN}',
        '{"format": 2, "a": 1e999}',
        '{"format": 2, "a": -Infinity}',
        '{"format": ' + "9" * 10_000 + "}",
        '{"format": 2, "format": 2}',
        '{"format": 2.0}',
        '{"format": true}',
        '{"format": 1}',
        '"\\ud800"',
        "",
    ],
    ids=range(12),
)
def test_words_made_to_hurt_are_refused(saved, text):
    assert saved.refused({manifest.NAME: text.encode()}) is not None


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    state = {"a": small_run.data()[0], "b": [small_run.data()[1]]}
    run = RunCheckpoint(folder, {"seed": 1})
    run.save(state)
    return run, folder / "checkpoint.safetensors", state


@CASES
@given(anywhere, st.integers(0, 7), st.booleans(), st.binary(max_size=10))
def test_damaged_checkpoints_are_refused(checkpoint, where, bit, cut, more):
    run, path, state = checkpoint
    content = path.read_bytes()
    at = int(where * len(content))
    changed = bytearray(content[:at] + more if cut else content)
    if not cut:
        changed[at] ^= 1 << bit
    if bytes(changed) == content:
        return
    path.write_bytes(changed)
    try:
        with guarded(), pytest.raises(CheckpointError):
            run.load(state)
    finally:
        path.write_bytes(content)


@CASES
@given(st.data())
def test_hostile_checkpoints_are_refused(checkpoint, data):
    run, path, state = checkpoint
    content = path.read_bytes()
    header, numbers = header_of(content)
    name = data.draw(st.sampled_from(sorted(header)))
    header[name] = data.draw(st.one_of(entries, trees))
    path.write_bytes(with_header(json.dumps(header).encode(), numbers))
    try:
        with guarded(), pytest.raises(CheckpointError):
            run.load(state)
    finally:
        path.write_bytes(content)
