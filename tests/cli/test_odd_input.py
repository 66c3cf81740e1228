"""Odd names, variables, pipes and damaged records: one line that says what to do, no traceback."""

import os
import shutil

import numpy as np
import pytest
from typer.testing import CliRunner

from natural_langevin._internal import capacity
from natural_langevin._internal.messages import LONGEST
from natural_langevin.cli.app import app
from natural_langevin.data import csv_file
from tables import SMALL, flowers, one_line, run

TORCHRUN = {
    "RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29931",
    "NATURAL_LANGEVIN_TIMEOUT": "3",
}  # fmt: skip


@pytest.fixture
def table(tmp_path):
    return flowers(tmp_path / "flowers.csv", rows=40)


@pytest.mark.parametrize(
    "name", [".", "..", "/", "x" * 300, "nul\0x", "a.csv/x", "/dev/null/x", "/proc/x", "/dev/full"]
)
def test_odd_names_of_outputs(classes, table, tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.csv").write_text("a\n")
    commands = {"predict": ("--out", table), "evaluate": ("--json", table), "report": ("--out",)}
    for command, (option, *data) in commands.items():
        result = run(command, classes, *data, f"{option}={name}")
        assert result.exit_code == 2
        assert isinstance(result.exception, SystemExit)
        assert "Traceback" not in result.output
        assert len(result.output) < LONGEST


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("NATURAL_LANGEVIN_TIMEOUT", "abc", "must be a number of seconds, got 'abc'"),
        ("NATURAL_LANGEVIN_TIMEOUT", "-1", "must be a positive number of seconds"),
        ("RANK", "x", "RANK='x'"),
        ("WORLD_SIZE", "x", "WORLD_SIZE='x'"),
        ("WORLD_SIZE", "0", "start the script with torchrun"),
        ("MASTER_PORT", "99999999", "MASTER_PORT='99999999'"),
    ],
)
def test_bad_variables(classes, table, variable, value, said):
    environment = TORCHRUN | {variable: value, "COLUMNS": "200"}
    found = CliRunner(env=environment).invoke(app, ["evaluate", str(classes), str(table)])
    assert said in one_line(found)


@pytest.mark.parametrize("value", ["abc", "0", "1", "9" * 30])
def test_a_strange_width_of_the_terminal_does_no_harm(classes, table, value):
    words = ["evaluate", str(classes), str(table)]
    assert CliRunner(env={"COLUMNS": value}).invoke(app, words).exit_code == 0


@pytest.mark.parametrize("name", ["pipe", "pipe.npz", "zero", "zero.npz"])
def test_what_has_no_end_is_not_waited_for(classes, tmp_path, monkeypatch, name):
    monkeypatch.setattr(csv_file, "PATIENCE", 0.05)
    path = tmp_path / name
    os.mkfifo(path) if name.startswith("pipe") else path.symlink_to("/dev/zero")
    for words in (
        ("train", path, "--target", "y", "--out", tmp_path / "run"),
        ("predict", classes, path),
        ("evaluate", classes, path),
        ("report", path),
        ("predict", path, path),
    ):
        assert one_line(run(*words))


def test_a_pipe_that_somebody_writes_to_is_read(classes, table, tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    child = os.fork()
    if child == 0:
        try:
            pipe.write_bytes(table.read_bytes())
        finally:
            os._exit(0)
    result = run("predict", classes, pipe)
    os.waitpid(child, 0)
    assert result.exit_code == 0
    assert result.stdout.count("\n") == 41


def test_a_table_without_an_end_stops_at_the_memory(tmp_path, monkeypatch):
    path = tmp_path / "long.csv"
    path.write_text("a,y\n" + "1.5,2\n" * 300_000)
    monkeypatch.setattr(capacity, "in_memory", lambda device=None: 1 << 22)
    words = ("train", path, "--target", "y", "--out", tmp_path / "run", *SMALL)
    assert "too much for this machine's memory" in one_line(run(*words))


def test_few_bytes_of_many_columns(classes, tmp_path):
    path = tmp_path / "bomb.npz"
    np.savez_compressed(path, x=np.zeros((1, 2_000_000)), y=np.zeros(1))
    assert path.stat().st_size < 1 << 16
    assert "more than 100,000: select some" in one_line(run("train", path))
    assert "2,000,000 columns" in one_line(run("predict", classes, path))


@pytest.mark.parametrize("record", ["run.json", "quality.json", "learned/learned.json"])
@pytest.mark.parametrize("damage", ["flip", "pipe", "huge", "empty"])
def test_damaged_records(classes, table, tmp_path, record, damage):
    copy = tmp_path / "copy"
    shutil.copytree(classes, copy)
    path = copy / record
    content = bytearray(path.read_bytes())
    path.unlink()
    if damage == "pipe":
        os.mkfifo(path)
    elif damage == "huge":
        with path.open("wb") as handle:
            handle.truncate(1 << 40)
    else:
        content[len(content) // 2] ^= 4
        path.write_bytes(content if damage == "flip" else b"")
    command = ("report", copy) if record == "quality.json" else ("predict", copy, table)
    assert len(one_line(run(*command))) < LONGEST


def test_names_of_any_length_make_no_long_message(tmp_path):
    path = tmp_path / "names.csv"
    path.write_text(",".join(f"{'a' * 5000}{k}" for k in range(50)) + "\n" + "1," * 49 + "1\n")
    said = one_line(run("train", path, "--target", "y"))
    assert len(said) <= LONGEST
    assert "there is no column 'y'" in said
