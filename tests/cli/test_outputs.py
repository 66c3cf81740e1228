"""What commands write: not over what they read, no formula for a spreadsheet, no terminal codes."""

import csv
import io
import os
import stat
import threading

import pytest
from rich.table import Table

from natural_langevin.cli.console import SafeConsole
from natural_langevin.tabular.predictions import escaped
from tables import SMALL, flowers, one_line, read_table, run, write_table

HOSTILE = ('=HYPERLINK("http://x","y")', "+cmd|' /C calc'!A0", "-2+3", "@SUM(A1)", "\x1b[2Jesc")


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    """A run on a table whose classes and cells are made to be misunderstood."""
    folder = tmp_path_factory.mktemp("hostile")
    rows = [(k % 7, -1.5 * k, HOSTILE[k % 5], HOSTILE[k % 5]) for k in range(60)]
    table = write_table(folder / "table.csv", ("size", "low", "=word", "kind"), rows)
    words = ("train", table, "--target", "kind", "--out", folder / "run", *SMALL, "--steps", "40")
    result = run(*words)
    assert result.exit_code == 0, result.output
    return folder, result.output


def test_cells_that_begin_a_formula_are_text_and_numbers_stay_numbers(hostile, tmp_path):
    folder, _ = hostile
    out = tmp_path / "p.csv"
    words = ("predict", folder / "run", folder / "table.csv", "--out", out)
    keep = ("--keep", "low", "--keep", "=word", "--keep", "kind")
    assert run(*words, *keep).exit_code == 0
    rows = read_table(out)
    assert not [cell for row in [*rows, dict.fromkeys(rows[0])] for cell in row
                if cell.startswith(("=", "+", "-", "@"))]  # fmt: skip
    for number, row in enumerate(rows):
        word = HOSTILE[number % 5]
        assert float(row["low"]) == -1.5 * number
        assert row["'=word"] == (word if word.startswith("\x1b") else f"'{word}")
        assert row["prediction"].startswith(("'", "\x1b"))
    assert run(*words, *keep, "--keep-formulas").exit_code == 0
    assert [row["=word"] for row in read_table(out)] == [HOSTILE[k % 5] for k in range(60)]


@pytest.mark.parametrize("number", ["-1.5", "+3", "-1e-9", "-1,234.5", "-12 %", "-inf", "- ", "x"])
def test_what_is_no_formula_is_not_escaped(number):
    assert escaped(number) == (number if number != "- " else "'- ")


@pytest.mark.parametrize("command", ["train", "evaluate", "predict"])
def test_no_control_character_reaches_the_terminal(hostile, tmp_path, command):
    folder, said = hostile
    if command == "evaluate":
        said = run("evaluate", folder / "run", folder / "table.csv").output
    elif command == "predict":
        (tmp_path / "\x1b[31m.csv").write_text("a\n")
        said = run("predict", folder / "run", tmp_path / "\x1b[31m.csv").output
    assert "\x1b" not in said
    assert "\\x1b[" in said


def test_a_terminal_is_sent_no_codes_but_rich_its_own():
    file = io.StringIO()
    console = SafeConsole(file=file, force_terminal=True, width=80, color_system="standard")
    table = Table("col\x1b]0;x\x07umn")
    table.add_row("[bold]a\x1b[2Jb[/]")
    console.print("[red]text\x1b[8m\u202e[/]")
    console.print(table)
    sent = file.getvalue()
    for code in ("\x1b[2J", "\x1b[8m", "\x1b]0;", "\x07", "\u202e"):
        assert code not in sent
    assert "\\x1b]0;" in sent
    assert "\x1b[31m" in sent  # the style that was asked for


def test_predictions_on_a_terminal_are_visible_and_in_a_pipe_exact(hostile):
    folder, _ = hostile
    main, other = os.openpty()
    command = f"predict {folder / 'run'} {folder / 'table.csv'} --keep kind --keep-formulas"
    child = os.fork()
    if child == 0:
        os.dup2(other, 1)
        os.dup2(other, 2)
        import sys

        from natural_langevin.cli.app import app

        sys.stdout = os.fdopen(1, "w")
        try:
            app(command.split(), standalone_mode=False)
            sys.stdout.flush()
        finally:
            os._exit(0)
    os.close(other)
    sent = bytearray()
    try:
        while piece := os.read(main, 1 << 16):
            sent += piece
    except OSError:  # the other end is closed
        pass
    os.waitpid(child, 0)
    os.close(main)
    assert b"\\x1b[2Jesc" in sent
    assert b"\x1b[2J" not in sent
    assert "\x1b[2Jesc" in run(*command.split()).stdout


def test_outputs_go_where_they_are_sent(classes, tmp_path):
    table = flowers(tmp_path / "new.csv", rows=3)
    out, link = tmp_path / "p.csv", tmp_path / "link.csv"
    out.write_text("old")
    out.chmod(0o600)
    link.symlink_to(out)
    assert run("predict", classes, table, "--out", link).exit_code == 0
    assert link.is_symlink()
    assert len(read_table(out)) == 3
    assert stat.S_IMODE(out.stat().st_mode) == 0o600
    pipe, found = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: found.append(pipe.read_text()))
    reader.start()
    assert run("predict", classes, table, "--out", pipe).exit_code == 0
    reader.join(30)
    assert len(list(csv.reader(io.StringIO(found[0])))) == 4
    assert run("predict", classes, table, "--out", "/dev/null").exit_code == 0
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)


@pytest.mark.parametrize("way", ["itself", "dots", "link", "hard link"])
def test_the_input_is_never_the_output(classes, tmp_path, way):
    table = flowers(tmp_path / "new.csv", rows=3)
    before, out = table.read_bytes(), tmp_path / "other.csv"
    if way == "itself":
        out = table
    elif way == "dots":
        out = tmp_path / ".." / tmp_path.name / "new.csv"
    elif way == "link":
        out.symlink_to(table)
    else:
        out.hardlink_to(table)
    for words in (("predict", classes, table, "--out"), ("evaluate", classes, table, "--json")):
        assert "would be overwritten: give another name" in one_line(run(*words, out))
    assert table.read_bytes() == before
    assert "would be overwritten" in one_line(
        run("predict", classes, table, "--out", classes / "run.json")
    )
    assert "would be overwritten" in one_line(
        run("report", classes, "--out", classes / "quality.json")
    )
    assert run("report", classes, "--out", tmp_path / "report.html").exit_code == 0
    assert run("report", classes, "--out", tmp_path / "report.html").exit_code == 0
