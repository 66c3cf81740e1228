"""The laboratory's commands: their examples, and options that cannot be had."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import pytest

TOY = "--data synthetic --depth 8 --width 2 --seconds 1e-9 --pilot 0 --looks 2 --batch-size 50"


def run(command: str) -> None:
    """``python -m lab.NAME ...``, in this process."""
    name, *words = command.split()
    importlib.import_module(f"lab.{name}.__main__").main(words)


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page without a place for tables, and broken JSON."""
    monkeypatch.chdir(tmp_path)
    Path("page.md").write_text("nothing")
    Path("broken").mkdir()
    Path("broken/run.json").write_text("{")


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("uci yacht --splits 0", "--splits"),
        ("uci yacht --steps 0", "--steps"),
        (f"fidelity rmsprop {TOY} --depth 9", "must be 6 n + 2"),
        (f"fidelity rmsprop {TOY} --width 0", "--width"),
        (f"fidelity rmsprop {TOY} --seconds nan", "--seconds: must be finite"),
        (f"fidelity rmsprop {TOY} --pilot inf", "--pilot: must be finite"),
        (f"fidelity rmsprop {TOY} --chains 0", "--chains"),
        (f"fidelity rmsprop {TOY} --batch-size 0", "--batch-size"),
        (f"fidelity rmsprop {TOY} --looks 0", "--looks"),
        (f"fidelity rmsprop {TOY} --seed -1", "--seed"),
        (f"fidelity rmsprop {TOY} --shift -1", "--shift"),
        (f"fidelity rmsprop {TOY} --page page.md", "page.md has no place for the table: add"),
        (f"fidelity rmsprop {TOY} --page none.md", "there is no none.md"),
        (f"fidelity rmsprop {TOY} --plot a.xyz", "use a name that ends in .svg or .png"),
        ("shift posterior --data digits --steps 0", "--steps"),
        ("shift posterior --data nope", "choose from mnist, fashion-mnist, digits"),
        ("shift posterior --data digits --out broken/run.json", "give another --out"),
        (f"fidelity rmsprop {TOY} --out broken/run.json", "give another --out"),
        ("shift posterior --data digits --chains 0", "--chains"),
        ("shift posterior --data digits --hidden 0", "--hidden"),
        ("shift posterior --data digits --images 0", "--images"),
        ("shift posterior --data digits --seed -1", "--seed"),
    ],
)
def test_what_cannot_be_had_is_said_without_a_traceback(
    command: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        run(command)
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("commands", "file", "shown"),
    [
        (
            ["uci yacht --split 0 --steps 60 --out parts/0.json", "uci --merge parts"],
            "uci.json",
            "deep ensemble (2017)",
        ),
        ([f"fidelity rmsprop {TOY}"], "fidelity.json", "| underdamped, RMSProp |"),
        (
            ["shift single --data digits --steps 20 --hidden 16 --images 100"],
            "shift.json",
            "| one network |",
        ),
    ],
)
def test_a_command_leaves_its_results_and_shows_them(
    commands: list[str], file: str, shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for command in commands:
        run(command)
    assert json.loads(Path(file).read_text())["rows"]
    assert shown in capsys.readouterr().out
