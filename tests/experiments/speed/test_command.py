"""``natural-langevin bench`` as a user meets it."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from natural_langevin.cli.app import app


@pytest.fixture
def command(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    return lambda *words: CliRunner().invoke(app, ["bench", *map(str, words)])


def test_a_short_run_leaves_results_and_a_picture(command, tmp_path):
    """The paper's network at its real size, two contenders, one repeat."""
    out = tmp_path / "bench.json"
    result = command(
        "--device", "cpu", "--no-compile", "--sections", "steps", "--networks", "mlp",
        "--chains", 1, "--repeats", 1, "--threads", 1, "--only", "randn", "--out", out,
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    (part,) = json.loads(out.read_text())["sections"]["steps"]["networks"]
    assert part["parameters"] == 478_410
    assert [row["name"] for row in part["rows"]] == ["SGD, eager", "SGD + randn"]
    assert f"{part['rows'][1]['ratio']:.2f}" in result.output
    assert (tmp_path / "bench.png").stat().st_size > 5_000


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["--device", "warp"], "unknown device"),
        (["--sections", "speed"], "choose among steps"),
        (["--chains", "0"], "at least 1"),
    ],
)
def test_a_wrong_option_is_one_line_with_the_remedy(command, tmp_path, words, part):
    result = command(*words, "--out", tmp_path / "bench.json")
    assert result.exit_code == 2
    assert len(result.output.strip().splitlines()) == 1
    assert part in result.output


def test_a_file_that_cannot_be_written_is_one_line_before_anything_is_measured(command, tmp_path):
    (tmp_path / "file").write_text("")
    result = command("--out", tmp_path / "file" / "bench.json")
    assert result.exit_code == 2
    assert len(result.output.strip().splitlines()) == 1
