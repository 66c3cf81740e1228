"""Numbers, names and places that cannot be had: one sentence with the remedy, never a traceback."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from natural_langevin.cli.app import app

TOY = "--data synthetic --depth 8 --width 2 --seconds 1e-9 --pilot 0 --looks 2 --batch-size 50"
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
        ("uci yacht --splits 0", "--splits"),
        ("uci yacht --steps 0", "--steps"),
        (f"fidelity rmsprop {TOY} --depth 9", "--depth must be 6 n + 2"),
        (f"fidelity rmsprop {TOY} --width 0", "--width"),
        (f"fidelity rmsprop {TOY} --seconds nan", "--seconds must be positive and finite"),
        (f"fidelity rmsprop {TOY} --pilot inf", "--pilot must be positive and finite"),
        (f"fidelity rmsprop {TOY} --chains 0", "--chains"),
        (f"fidelity rmsprop {TOY} --batch-size 0", "--batch-size"),
        (f"fidelity rmsprop {TOY} --looks 0", "--looks"),
        (f"fidelity rmsprop {TOY} --seed -1", "--seed"),
        (f"fidelity rmsprop {TOY} --shift -1", "--shift"),
        (f"fidelity rmsprop {TOY} --device gpu", "use auto, cpu or cuda"),
        (f"fidelity rmsprop {TOY} --page page.md", "page.md has no place for the table: add"),
        (f"fidelity rmsprop {TOY} --page none.md", "there is no none.md"),
        (f"fidelity rmsprop {TOY} --plot a.xyz", "give --plot a name that ends in .svg or .png"),
        ("shift posterior --data digits --steps 0", "--steps"),
        ("shift posterior --data nope", "choose from mnist, fashion-mnist, digits"),
        ("shift posterior --data digits --out broken/run.json", "give another --out"),
        (f"fidelity rmsprop {TOY} --out broken/run.json", "give another --out"),
        ("shift posterior --data digits --chains 0", "--chains"),
        ("shift posterior --data digits --hidden 0", "--hidden"),
        ("shift posterior --data digits --images 0", "--images"),
        ("shift posterior --data digits --seed -1", "--seed"),
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
        assert "make room" not in result.output
