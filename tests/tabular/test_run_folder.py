"""A run's folder comes back as it was, and a damaged one is a RunFolderError, nothing else."""

import contextlib
import copy
import json
import random
import threading
import tracemalloc
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from natural_langevin._internal.checked_json import checksum
from natural_langevin._internal.folder_lock import FolderInUseError, FolderLock
from natural_langevin.data import DataError
from natural_langevin.tabular.columns import Category, Date, Number
from natural_langevin.tabular.features import Features
from natural_langevin.tabular.fit import open_default_folder, open_folder
from natural_langevin.tabular.outcome import Outcome
from natural_langevin.tabular.run import Run, RunFolderError, load_run, read_quality, write_run
from natural_langevin.tabular.settings import Settings
from natural_langevin.tabular.target import Target

RUN = Run(
    source="people.csv",
    rows=(80, 20),
    features=Features(
        (
            Number("age", 40.0, 9.5, missing=True),
            Category("town", ("Oslo", "Rome")),
            Date("day", "%Y-%m-%d", {"days": (19000.0, 30.0)}),
        ),
        ("flag: left out",),
    ),
    target=Target("y", ("a", "b"), (0.25, 0.75)),
    settings=Settings(hidden=(5, 4), seed=3),
    hold_out=0.2,
    notices=("1 of 101 rows lack the target",),
)
STRANGE = [
    None,
    True,
    -1,
    0,
    10**12,
    1e308,
    float("nan"),
    float("inf"),
    "",
    "x",
    [],
    [1],
    {},
    "é" * 99,
]


def test_it_comes_back_as_it_was(tmp_path):
    write_run(tmp_path, RUN)
    assert load_run(tmp_path) == RUN
    assert RUN.features.width == 5


def test_a_changed_bit_is_noticed_wherever_it_is(tmp_path):
    write_run(tmp_path, RUN)
    path = tmp_path / "run.json"
    whole, dice = path.read_bytes(), random.Random(0)
    for _ in range(250):
        changed = bytearray(whole)
        changed[dice.randrange(len(whole))] ^= 1 << dice.randrange(8)
        path.write_bytes(changed)
        with contextlib.suppress(RunFolderError):
            assert load_run(tmp_path) == RUN  # a space that became a tab


def places(value, path=()):
    """The path of every value inside."""
    yield path
    if isinstance(value, (dict, list)):
        for key, child in value.items() if isinstance(value, dict) else enumerate(value):
            yield from places(child, (*path, key))


@settings(max_examples=25, deadline=None, derandomize=True, database=None)
@given(st.integers(0, 2**32))
def test_any_strange_value_is_read_or_refused(tmp_path_factory, seed):
    folder, dice = tmp_path_factory.mktemp("run"), random.Random(seed)
    for _ in range(20):
        value = copy.deepcopy(RUN.to_json())
        path = dice.choice([p for p in places(value) if p])
        parent = value
        for key in path[:-1]:
            parent = parent[key]
        if dice.random() < 0.2:
            del parent[path[-1]]
        else:
            parent[path[-1]] = dice.choice(STRANGE)
        with contextlib.suppress(ValueError):  # NaN
            value |= {"checksum": checksum(value)}
        (folder / "run.json").write_text(json.dumps(value))
        try:
            found = load_run(folder)
        except RunFolderError as error:
            message = str(error)
            assert len(message) < 500
            continue
        assert found.features.width > 0


def test_a_network_of_absurd_size_is_not_built():
    settings = Settings(hidden=(10**9, 10**9))
    tracemalloc.start()
    with pytest.raises(DataError, match="parameters"):
        Outcome("classification", "categorical", 2).network(3, settings)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 22


@pytest.mark.parametrize("text", ["", "[", "[1]", "null", '{"format": 1}', "[" * 100_000])
def test_what_is_no_record_is_refused(tmp_path, text):
    (tmp_path / "run.json").write_text(text)
    (tmp_path / "quality.json").write_text(text)
    for read in (load_run, read_quality):
        with pytest.raises(RunFolderError):
            read(tmp_path)


def test_a_quality_without_its_parts_is_refused(tmp_path):
    (tmp_path / "quality.json").write_text('{"format": 2, "rows": 3, "data": "a", "task": "b"}')
    with pytest.raises(RunFolderError, match="its checksum differs"):
        read_quality(tmp_path)


def in_another_thread(action):
    """What it returns; threads have locks of their own, as processes do."""
    found = []
    thread = threading.Thread(target=lambda: found.append(action()))
    thread.start()
    thread.join()
    return found[0]


def test_a_folder_that_somebody_trains_in_is_left_alone(tmp_path):
    other = replace(RUN, rows=(70, 30))
    open_folder(tmp_path / "sales", RUN, resume=False)

    def late():
        with pytest.raises(FolderInUseError, match="has been training there since"):
            open_folder(tmp_path / "sales", other, resume=True)
        return open_default_folder(tmp_path / "sales", other, resume=False)

    assert in_another_thread(late) == tmp_path / "sales-2"
    assert load_run(tmp_path / "sales") == RUN
    assert load_run(tmp_path / "sales-2") == other


def test_a_default_folder_is_nobody_elses(tmp_path, caplog):
    base, other = tmp_path / "sales", replace(RUN, rows=(70, 30))
    assert open_default_folder(base, RUN, resume=False) == base
    (base / "quality.json").write_text("{}")
    assert open_default_folder(base, other, resume=False) == tmp_path / "sales-2"
    assert "holds another run: rows differ" in caplog.text
    assert "this run is kept in" in caplog.text
    (tmp_path / "sales-2" / "quality.json").write_text("{}")
    with pytest.raises(RunFolderError, match="--resume"):
        open_default_folder(base, RUN, resume=False)
    assert open_default_folder(base, other, resume=True) == tmp_path / "sales-2"
    with pytest.raises(RunFolderError, match=r"sales holds another run: hold_out differ"):
        open_default_folder(base, replace(RUN, hold_out=0.3), resume=True)
    assert not (tmp_path / "sales-3").exists()
    assert FolderLock(base, "at the end").release() is None
