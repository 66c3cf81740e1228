"""Figures in the laboratory's notes are those of the committed results (pages: test_figures.py)."""

import importlib
import json
import math
import re
import statistics
from pathlib import Path
from typing import Any

import pytest

from lab.beyond.run import page_table
from lab.pages import with_part
from natural_langevin.cli.pages import load_results

ROOT = Path(__file__).parents[2]
NOTES = ROOT / "lab" / "notes"
RESULTS = load_results(ROOT / "results" / "table1-h200.json")


HEADER = (
    "| method | train NLL | train acc. % | test NLL | test acc. % | Brier | ECE | "
    "paper: test NLL | paper: acc. |",
    "|---|---|---|---|---|---|---|---|---|",
)


def markdown_table(results: dict[str, Any]) -> str:
    """One line per row of the results; test columns as mean ± standard deviation over seeds."""
    return "\n".join([*HEADER, *(_line(row) for row in results["rows"])])


def _line(row: dict[str, Any]) -> str:
    train, test, paper = row["train"], row["test"], row["paper"]
    cells = [
        row["label"],
        f"{train['nll']['mean']:.4f}",
        f"{train['accuracy']['mean']:.2f}",
        _spread(test["nll"], 4),
        _spread(test["accuracy"], 2),
        f"{test['brier']['mean']:.4f}",
        f"{test['ece']['mean']:.4f}",
        f"{paper['test']['nll']:.4f}" if paper else "",
        f"{paper['test']['accuracy']:.2f}" if paper else "",
    ]
    return f"| {' | '.join(cells)} |"


def _spread(cell: dict[str, Any], digits: int) -> str:
    return f"{cell['mean']:.{digits}f} ± {cell['std']:.{digits}f}"


def between_markers(page: str) -> list[str]:
    text = (ROOT / page).read_text(encoding="utf-8")
    (block,) = re.findall(r"<!-- table:begin -->\n(.*?)\n<!-- table:end -->", text, re.DOTALL)
    return block.splitlines()


def test_the_whole_table_is_the_results():
    assert between_markers("lab/notes/table1.md") == markdown_table(RESULTS).splitlines()


def results(name: str) -> dict:
    return json.loads((ROOT / "results" / f"{name}.json").read_text())


def test_the_reference_posteriors_are_the_results():
    cells = results("posteriordb")["rows"]
    page = (ROOT / "lab" / "notes" / "reference_posteriors.md").read_text(encoding="utf-8")
    table = importlib.import_module("lab.posteriordb").table(cells)
    assert with_part(page, "posteriordb", table) == page


def test_the_samplers_table_is_the_results():
    program, known = importlib.import_module("lab.samplers.page"), results("samplers")
    page = (ROOT / "lab" / "notes" / "samplers.md").read_text(encoding="utf-8")
    assert program.filled(page, known, results("integrator-order")["rows"]) == page


def beyond_names() -> list[str]:
    page = (ROOT / "lab" / "notes" / "table1.md").read_text(encoding="utf-8")
    return re.findall(r"<!-- beyond-(\S+):begin -->", page)


def test_the_page_has_mnist_and_the_other_data_beyond_the_paper():
    assert {"h200", "digits", "spam7", "fgl"} <= set(beyond_names())


@pytest.mark.parametrize("name", beyond_names())
def test_the_rows_beyond_the_paper_are_the_results(name):
    page = (ROOT / "lab" / "notes" / "table1.md").read_text(encoding="utf-8")
    known = results(f"beyond-{name}")
    assert with_part(page, f"beyond-{name}", page_table(known)) == page
    assert known["rows"] == [r for p in known["parts"].values() for r in p.get("rows", [])]
    assert {p["machine"]["commit"] for p in known["parts"].values()} == {known["commit"]}


def test_a_sampler_that_did_not_mix_has_no_reading():
    program = importlib.import_module("lab.samplers.page")
    draws = 100 * program.CHAINS
    assert program.read({"draws": 100, "ess": draws / 3})
    for ess in (4.0 * program.CHAINS, draws * math.log10(draws)):  # too few; at the ceiling
        assert not program.read({"draws": 100, "ess": ess})


def test_a_distance_to_a_reference_that_did_not_mix_says_so():
    program = importlib.import_module("lab.samplers.page")
    rows = [c for c in results("samplers")["rows"] if c.get("gap") is not None and c["gap"] < 10]
    assert {c["kind"] for c in rows} == {"moons", "wave"}
    for cell in rows:
        unsettled = cell["reference_rhat"] >= program.SETTLED
        assert ("R-hat" in program._distance(cell)) == unsettled == (cell["kind"] == "wave")


def test_predictions_that_left_have_no_spread():
    program = importlib.import_module("lab.samplers.page")
    row = {"problem": "wave", "metric": "UnitFisher", "spread": 0.5, "gap": 0.1}
    rows = [row | {"steepness": s} for s in program.SMALLER]
    rows[1] |= importlib.import_module("lab.samplers.cells").finite({"gap": math.inf})
    rows[2] |= {"diverged": 3}
    line = program.spreads(rows).splitlines()[-1]
    assert line == "| `UnitFisher` | +50 % | diverges | diverges |"


def test_results_name_their_configuration_seeds_and_machine():
    assert RESULTS["machine"]["device"] == "NVIDIA H200"
    assert len(RESULTS["config"]["seeds"]) == 5
    assert RESULTS["config"]["steps"] == 60_000
    assert RESULTS["commit"]
    assert all(len(row["test"]["nll"]["values"]) == 5 for row in RESULTS["rows"])


@pytest.mark.parametrize(
    ("method", "estimate", "nll"),
    [
        ("qdop", "ensemble", 0.0591),
        ("dop", "ensemble", 0.0660),
        ("rmsprop", "ensemble", 0.0742),
        ("qdop", "pooled", 0.0519),
        ("dropout", "point", 0.062),
        ("sgd", "point", 0.075),
    ],
)
def test_the_committed_run_is_at_least_as_good_as_the_papers_nll(method, estimate, nll):
    (row,) = [r for r in RESULTS["rows"] if (r["method"], r["estimate"]) == (method, estimate)]
    assert row["test"]["nll"]["mean"] <= nll


def test_the_page_says_whose_nll_is_above_the_papers():
    """Euclidean's, by five seeds of the committed run."""
    (row,) = [
        r for r in RESULTS["rows"] if (r["method"], r["estimate"]) == ("euclidean", "ensemble")
    ]
    above = row["test"]["nll"]["mean"] - 0.0726
    assert above > 0
    page = (ROOT / "lab" / "notes" / "table1.md").read_text(encoding="utf-8")
    assert f"Every NLL goal is met but Euclidean's, by {above:.4f}" in page


def test_pictures_that_pages_show_exist():
    for page in [*(ROOT / "docs").rglob("*.md"), *NOTES.glob("*.md"), ROOT / "README.md"]:
        for picture in re.findall(r"!\[[^]]*\]\(([^)]+)\)", page.read_text(encoding="utf-8")):
            assert (page.parent / picture).exists(), f"{page.name}: {picture}"


def test_links_of_the_notes_lead_somewhere():
    for page in NOTES.glob("*.md"):
        for target in re.findall(r"(?<!!)\[[^\]]*\]\(([^)#\s]+)(?:#[^)\s]*)?\)", page.read_text()):
            assert "://" in target or (page.parent / target).exists(), f"{page.name}: {target}"


def test_more_seeds_hold_as_many_values_as_they_say():
    more = json.loads((ROOT / "results" / "table1-h200-more-seeds.json").read_text())
    for row in more["rows"]:
        assert len(row["test"]["accuracy"]["values"]) == row["seeds"]


def test_active_learning_figures_are_the_results():
    found = json.loads((ROOT / "results" / "active_learning.json").read_text())
    rows = between_markers("docs/recipes/active_learning.md")
    choices = ("most_together", "most_uncertain", "at_random")
    for row, choice in zip(rows[2:], choices, strict=True):
        values = [float(cell) for cell in row.split("|")[2:-1]]
        assert values == [round(v, 3) for v in found["mean over seeds"][choice]]
        assert len(found["held-out nll"][choice]) == len(found["seeds"]) == 5


def test_figures_quoted_beside_the_pictures_are_the_results():
    grids = json.loads((ROOT / "results" / "choosing.json").read_text())["grids"]

    def mean(title, value, what="nll"):
        chains = grids[title]["chains"][grids[title]["values"].index(value)]
        return sum(chain[what] for chain in chains) / len(chains)

    natural, plain = "step_size, QuasiDiagonalFisher", "step_size, Euclidean"
    quoted = {
        "NLL 0.110": mean(natural, 0.01), "the NLL is 0.088": mean(natural, 0.03),
        "NLL of 0.104": mean(plain, 1.0), "NLL 0.37": mean("variance", 0.03),
        "best (0.098)": mean("variance", 1.0), "NLL is 0.097": mean("temperature", 1.0),
        "are worth 22": mean(natural, 0.01, "ess"), "are worth 70": mean(natural, 0.03, "ess"),
        "then worth 16": mean(plain, 1.0, "ess"),
    }  # fmt: skip
    text = " ".join((ROOT / "lab" / "notes" / "choosing.md").read_text().split())
    for words, value in quoted.items():
        assert words in text
        number = re.search(r"[\d.]+\d", words)[0]
        assert float(number) == round(value, len(number.partition(".")[2]))
    cold = [mean("temperature", t) for t in (0.001, 0.01, 0.03, 0.1)]
    assert "between 0.077 and 0.081" in text
    assert (round(min(cold), 3), round(max(cold), 3)) == (0.077, 0.081)


def test_figures_of_compiled_layers_are_the_record():
    """Of 259 runs the error is stated, of 11 why there is none."""
    rows = json.loads((ROOT / "results" / "compiled-layers.json").read_text())["rows"]
    text = " ".join((ROOT / "lab" / "notes" / "layers.md").read_text().split())
    odd = [row["network"] for row in rows if "not compiled" in row]
    assert set(odd) == {"shared submodule", "user's hooks", "conv3d"}
    assert f"{len(rows)} runs" in text
    assert f"The {len({row['network'] for row in rows})} networks" in text
    assert f"{len(rows) - len(odd)} compiled. " in text
    assert f"The other {len(odd)} are" in text
    for dtype, shown in (("float32", 4.5e-6), ("float64", 1.7e-14)):
        errors = [v for r in rows if r["dtype"] == dtype for k, v in r.items() if k[:4] == "from"]
        assert f"{shown:g} in {dtype}".replace("e-06", "e-6") in text
        assert 0 < max(errors) <= shown < 1.05 * max(errors)


def test_functions_without_noise_are_predicted_as_the_page_says():
    rows = json.loads((ROOT / "results/spread.json").read_text())["rows"]
    page = " ".join((ROOT / "lab/notes/defaults.md").read_text().split())

    def change(some: list[dict], what: str) -> tuple[float, float]:
        each = [row["taken"][what] - row["before"][what] for row in some]
        return statistics.fmean(each), statistics.stdev(each) / len(each) ** 0.5

    made = [row for row in rows if re.search(r"_\d+_0(\.03)?-0$", row["job"])]
    free = [row for row in made if row["job"].endswith("_0-0")]
    assert all(row["taken"] == row["before"] for row in rows if row not in made)
    assert (len(rows), len(made), len(free)) == (46, 24, 18)
    mean, error = change(rows, "calibration_error")
    assert f"−{-mean:.4f} ± {error:.4f}".replace("0.", ".") in page
    mean, error = change(free, "calibration_error")
    assert f"(−{-mean:.3f} ± {error:.3f})".replace("0.", ".") in page
    before, after = (
        statistics.fmean(row[k]["calibration_error"] for row in free) for k in ("before", "taken")
    )
    assert f"calibration error {before:.3f} → {after:.3f}".replace("0.", ".") in page
