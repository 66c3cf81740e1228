"""Numbers, names and places that cannot be had: one sentence with the remedy, never a traceback."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from natural_langevin.cli.app import app

FIT = "train flats.csv --target price --steps 8 --chains 2 --folds 0"
ROWS = "".join(f"{30 + 3 * i},{1 + i % 4},{800 + 45 * i}\n" for i in range(24))


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A table, a page without a place for tables, a file, a folder and broken JSON."""
    monkeypatch.chdir(tmp_path)
    Path("flats.csv").write_text(f"area,rooms,price\n{ROWS}")
    Path("page.md").write_text("nothing")
    Path("folder").mkdir()
    Path("broken").mkdir()
    Path("broken/run.json").write_text("{")


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("sbc --step-size -1", "--step-size must be positive and finite, got -1"),
        ("sbc --step-size nan", "--step-size must be positive and finite, got nan"),
        ("sbc --inputs 0", "--inputs"),
        ("sbc --hidden -1", "--hidden"),
        ("sbc --rows 0", "--rows"),
        ("sbc --rows 10 --batch-size 99", "--batch-size is 99, and there are 10 rows"),
        ("sbc --simulations 0", "--simulations"),
        ("sbc --draws 0", "--draws"),
        ("sbc --burn-in -1", "--burn-in"),
        ("sbc --thin 0", "--thin"),
        ("sbc --seed -1", "--seed"),
        (f"{FIT} --categorical room", "did you mean 'rooms'?"),
        (f"{FIT} --step-size -1", "a positive number"),
        (f"{FIT} --out page.md", "page.md is a file, where a folder should be"),
        (f"{FIT} --out page.md/sub", "page.md is a file, where a folder should be"),
        (f"{FIT} --drop area --drop rooms", "add a column, or drop fewer"),
        ("train folder --target price", "folder is a folder: give the file itself"),
        ("predict broken flats.csv", "damaged: copy the folder again, or train again"),
        ("report flats.csv", "give a folder of train --out or Posterior.save, or a results.json"),
    ],
)
def test_what_cannot_be_had_is_one_sentence(command: str, said: str) -> None:
    result = CliRunner(env={"COLUMNS": "300"}).invoke(app, command.split())
    assert isinstance(result.exception, SystemExit), result.exception
    assert result.exit_code == 2, result.output
    assert said in result.output


def test_places_for_predictions_that_are_none() -> None:
    cli = CliRunner(env={"COLUMNS": "300"})
    assert cli.invoke(app, [*FIT.split(), "--out", "run"]).exit_code == 0
    for place, said in (
        ("--out folder", "folder is a folder: give the name of a file"),
        ("--out none/x.csv", "there is no folder"),
        ("--out page.md/x.csv", "page.md is a file, where a folder should be"),
        ("--keep pric --out x.csv", "did you mean 'price'?"),
    ):
        result = cli.invoke(app, ["predict", "run", "flats.csv", *place.split()])
        assert result.exit_code == 2
        assert said in result.output
        assert "free space" not in result.output
