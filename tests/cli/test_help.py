"""The examples of every command's --help, pasted from a terminal of 80 columns into a shell.

Each command's examples begin in an empty folder and make what they need; those that begin with the
same line, which goes on with a run that is there (--resume), find what the first of them has made.
Options that shorten a run are added at the end of the line (the last one counts); everything else
runs as it is shown.
"""

import json
import os
import runpy
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from natural_langevin.cli.app import app
from natural_langevin.cli.experiments.table1.protocol import PRESETS
from tables import TOY, run

COMMANDS = [command.name for command in app.registered_commands]
SHORTER = {
    "train": ("--steps", "20", "--hidden", "8", "--chains", "2", "--folds", "0", "--no-refit"),
    "bench": ("--only", "randn", "--repeats", "1", "--threads", "1"),
    "sbc": ("--simulations", "40", "--draws", "3", "--burn-in", "60", "--thin", "30"),
}
#: What the examples leave behind, so that a line which silently does nothing is noticed.
LEFT = {
    "train": ["flats.csv", "runs/flats/how_sure.png", "runs/digits/quality.json"],
    "predict": ["predictions.csv"],
    "evaluate": ["scores.json"],
    "report": ["page.html"],
    "reproduce": ["runs/table/report.html"],
    "bench": ["bench.json"],
    "sbc": [],
}


def shown(command: str) -> list[str]:
    """The lines under "Example", as a terminal shows them, continued lines joined as a shell does.

    Lines of the example are indented by two; a line that did not fit and was broken in two makes
    two commands of which at least one is nonsense."""
    text = CliRunner(env={"COLUMNS": "80"}).invoke(app, [command, "--help"]).output
    assert "\x1b" not in text
    after = text.split("\n Example", 1)[1].split("╭")[0]
    lines = [line[2:].rstrip() for line in after.splitlines() if line.startswith("  ")]
    return "\n".join(line for line in lines if line).replace("\\\n", "").splitlines()


def paste(line: str) -> str:
    """What the shell would print. Our own command runs in this process, others in theirs."""
    ours, bar, rest = line.partition(" | ")
    words = shlex.split(ours)
    if words[0] != "natural-langevin":
        return in_shell(line, "")
    result = run(*words[1:], *SHORTER.get(words[1], ()))
    assert result.exit_code == 0, (line, result.output)
    assert "\x1b" not in result.output
    return in_shell(rest, result.stdout) if bar else result.output


def in_shell(line: str, given: str) -> str:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(
        ["bash", "-c", line],
        input=given,
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PATH": path},
    )
    assert done.returncode == 0, (line, done.stderr)
    return done.stdout


@pytest.fixture
def empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(PRESETS, "quick", TOY)
    return tmp_path


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """By first lines that go on with what is there, the folder that they have made."""
    return {}, tmp_path_factory.mktemp("made")


@pytest.mark.parametrize("command", COMMANDS)
def test_the_examples_work_when_pasted(command, empty_folder, made):
    lines = shown(command)
    assert any(line.startswith(f"natural-langevin {command} ") for line in lines), lines
    found, kept = made
    if lines[0] in found:
        shutil.copytree(found[lines[0]], empty_folder / "runs")
    said = [paste(line) for line in lines]
    if lines[0].endswith(" --resume") and lines[0] not in found:
        found[lines[0]] = shutil.copytree(empty_folder / "runs", kept / command)
    for name in LEFT[command]:
        assert (empty_folder / name).stat().st_size > 100, name
    if command == "predict":
        assert said[-1].splitlines()[0].startswith("y,prediction,p(0)")
        assert len(said[-1].splitlines()) == 3
    if command == "evaluate":
        assert json.loads(Path("scores.json").read_text())["rows"] == 360


@pytest.mark.parametrize(
    "broken",
    [
        "natural-langevin train nowhere.csv --target y",  # data that no line made
        "natural-langevin train digits --outt runs/x",  # an option that is gone
        "python -c 'print(1' > t.csv",
    ],
)
def test_a_broken_example_is_noticed(broken, empty_folder):
    with pytest.raises(AssertionError):
        paste(broken)


def test_a_line_too_long_for_the_terminal_is_noticed(empty_folder, monkeypatch):
    (command,) = [c for c in app.registered_commands if c.name == "report"]
    longer = command.callback.__doc__.replace(
        "--steps 200 --resume", "--steps 200 --resume --hold-out 0.2 --task classification"
    )
    assert longer != command.callback.__doc__
    monkeypatch.setattr(command.callback, "__doc__", longer)
    (rest,) = [line for line in shown("report") if not line.startswith("natural-langevin ")]
    with pytest.raises(AssertionError):
        paste(rest)


def test_the_package_runs_as_a_module(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["natural_langevin", "--help"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("natural_langevin", run_name="__main__")
    assert ended.value.code == 0
    assert "reproduce" in capsys.readouterr().out
