"""docs/command_line.md, run as it stands (the examples of --help: tests/cli/test_help.py)."""

import re
import shlex
from pathlib import Path

from tables import read_table, run

PAGE = Path(__file__).parents[2] / "docs" / "command_line.md"
FILE = re.compile(r"Save this as `([^`]+)`:\n\n```csv\n(.*?)```", re.DOTALL)
SHELL = re.compile(r"^```sh\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def ours(line: str) -> tuple[list[str], bytes | None]:
    """The words after natural-langevin, and what `cat FILE |` in front of it gives."""
    before, bar, after = line.partition(" | ")
    words = shlex.split(after if bar else before)
    assert words[0] == "natural-langevin"
    return words[1:], Path(shlex.split(before)[1]).read_bytes() if bar else None


def test_the_page_runs_from_top_to_bottom(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = PAGE.read_text(encoding="utf-8")
    for name, content in FILE.findall(text):
        Path(name).write_text(content)
    lines = [line for block in SHELL.findall(text) for line in block.splitlines()]
    lines = [line for line in lines if not line.startswith("torchrun")]  # tests/distributed
    assert len(lines) == 6
    for line in lines:
        words, given = ours(line)
        result = run(*words, input=given)
        assert result.exit_code == 0, (line, result.output)
    found = read_table(Path("predictions.csv"))
    assert [row["street"] for row in found] == ["Elm 9", "Oak 1", "Fir 9"]
    named = set(re.findall(r"^\| `(.*?)` \|", text, re.MULTILINE))
    columns = {part for cell in named for part in cell.split("`, `")}
    assert set(found[0]) - {"street"} <= columns
    # What the page says of the third flat, far from all others.
    assert float(found[2]["epistemic_sd"]) > 2 * float(found[0]["epistemic_sd"])
    assert {"scores.json", "page.html", "runs"} <= {p.name for p in Path().iterdir()}
    assert Path("runs/flats/how_sure.png").exists()
