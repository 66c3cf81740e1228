"""The command that counts attacks, on its small part, and on a test that fails."""

import json
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.fixture
def command(monkeypatch):
    monkeypatch.syspath_prepend(str(HERE))
    return runpy.run_path(str(HERE / "__main__.py"))


def test_the_small_part_survives(command, tmp_path, monkeypatch, capsys):
    out = tmp_path / "attack.json"
    monkeypatch.setattr(sys, "argv", ["attack", "--quick", "--out", str(out)])
    code = command["main"]()
    said = capsys.readouterr().out
    assert code == 0, said
    families = json.loads(out.read_text())["families"]
    assert all(row["tried"] == row["survived"] > 0 for row in families.values())
    assert all(not row["failures"] for row in families.values())
    assert "survived" in said


def test_every_file_of_every_family_is_there(command):
    for group in command["FAMILIES"].values():
        for name in group:
            path, _, test = name.partition("::")
            text = (HERE.parent / path).read_text()
            assert not test or f"def {test}(" in text


def test_the_page_has_the_counts_that_were_committed(command):
    root = HERE.parents[1]
    families = json.loads((root / "results" / "attack.json").read_text())["families"]
    text = (root / "lab" / "notes" / "attacks.md").read_text()
    assert text == command["page"](text, families)
    assert set(families) == set(command["FAMILIES"])
    assert not any(row["failed"] for row in families.values())


def test_what_failed_or_did_not_run_is_counted_as_such(command, monkeypatch):
    rows = {"a": {"tried": 3, "survived": 2, "failed": 1, "skipped": 0, "seconds": 1.5}}
    last = command["table"](rows).splitlines()[-1]
    assert last.split() == ["all", "3", "2", "1", "0", "1.5"]
    ended = subprocess.CompletedProcess((), 4, "no such file", "")  # pytest, without any count
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: ended)
    gone = command["run"]({"gone": ("no_such_test.py",)})[0]["gone"]
    assert (gone["tried"], gone["failed"]) == (0, 1)
    assert gone["failures"] == ["not run: tests/no_such_test.py"]
