"""What all studies share: rows that are kept as they are done, and processes that answer."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest

from lab.command import CommandError
from lab.jobs import NoAnswerError, answer, started
from lab.results import attempted, complete


def _row(name: str, seed: int) -> dict[str, object]:
    return {"name": name, "seed": seed, "value": 1 / seed}


def test_a_study_runs_what_its_file_does_not_have(tmp_path: Path) -> None:
    out, ran = tmp_path / "study.json", list[tuple[str, int]]()

    def work(name: str, seed: int) -> dict[str, object]:
        ran.append((name, seed))
        return _row(name, seed)

    study = partial(complete, out, {"sizes": (1, 2)}, work=work, by=("name", "seed"), summary=len)
    study([("b", 1), ("a", 2)])
    found = study([("a", 1), ("b", 1), ("a", 2)])
    assert ran == [("b", 1), ("a", 2), ("a", 1)]
    assert [(row["name"], row["seed"]) for row in found["rows"]] == [("a", 1), ("a", 2), ("b", 1)]
    assert json.loads(out.read_text()) == found
    assert found["summary"] == 3
    assert "commit" in found["origin"]
    with pytest.raises(CommandError, match="other settings"):
        complete(out, {"sizes": (1,)}, [("c", 1)], work, by=("name", "seed"))


def test_rows_by_name_and_what_goes_wrong_in_one(tmp_path: Path) -> None:
    out = tmp_path / "study.json"
    found = complete(out, {}, [("a", 0), ("a", 2)], partial(attempted, _row), jobs=2)
    assert found["rows"]["a|0"] == {"failed": "ZeroDivisionError: division by zero"}
    assert found["rows"]["a|2"] == _row("a", 2)


def test_no_row_begins_after_its_time(tmp_path: Path) -> None:
    out = tmp_path / "study.json"
    assert complete(out, {}, [("a", 1)], _row, by=("name", "seed"), seconds=-1.0)["rows"] == []
    assert not out.exists()


def test_a_process_answers_or_says_why_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = 'import json, sys\nprint("loading")\nprint(json.dumps({"got": sys.stdin.readline()}))\n'
    (tmp_path / "one_answers.py").write_text(lines)
    (tmp_path / "one_breaks.py").write_text('raise SystemExit("no such thing")\n')
    (tmp_path / "one_hangs.py").write_text("import time\ntime.sleep(600)\n")
    monkeypatch.chdir(tmp_path)
    assert answer(started("one_answers", [])) == {"got": "now\n"}
    with pytest.raises(NoAnswerError, match="exit 1: no such thing"):
        answer(started("one_breaks", []))
    with pytest.raises(NoAnswerError, match="no answer in 0 s"):
        answer(started("one_hangs", []), 0.2)
