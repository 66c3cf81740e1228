"""predict: every number in its output against the networks themselves, and every way in and out."""

import csv
import io
import itertools
import math
import os
import tracemalloc

import numpy as np
import pandas as pd
import pytest
import torch

from natural_langevin.data.csv_file import CsvFile
from natural_langevin.tabular import predictions
from natural_langevin.tabular.run import load_learned, load_run
from tables import flowers, one_line, prices, read_table, run, write_table


def networks(folder):
    posterior = load_learned(folder).best
    return posterior, [posterior.network(c, d) for c in range(posterior.chains)
                       for d in range(posterior.draws)]  # fmt: skip


def test_classes_are_what_the_networks_say_on_average(classes, tmp_path):
    """The slow way: cells standardised by hand from run.json, one network after the other."""
    table = flowers(tmp_path / "new.csv", rows=7, seed=5)
    assert run("predict", classes, table, "--out", tmp_path / "p.csv").exit_code == 0
    model = load_run(classes)
    (size, weight, colour) = model.features.parts
    rows = []
    for line in read_table(table):
        numbers = [(float(line[p.name]) - p.mean) / p.scale for p in (size, weight)]
        rows.append([*numbers, *(float(line["colour"] == level) for level in colour.levels)])
    x = torch.tensor(rows, dtype=torch.float64)
    _, found = networks(classes)
    with torch.no_grad():
        p = torch.stack([net.double()(x).softmax(1) for net in found])
    mean = p.mean(0)
    total = torch.special.entr(mean).sum(1)
    aleatoric = torch.special.entr(p).sum(2).mean(0)
    for i, line in enumerate(read_table(tmp_path / "p.csv")):
        assert line["prediction"] == model.target.classes[int(mean[i].argmax())]
        shown = [float(line[f"p({name})"]) for name in model.target.classes]
        np.testing.assert_allclose(shown, mean[i], rtol=2e-4, atol=1e-6)
        assert math.isclose(float(line["total"]), total[i], rel_tol=2e-3, abs_tol=1e-5)
        assert math.isclose(float(line["aleatoric"]), aleatoric[i], rel_tol=2e-3, abs_tol=1e-5)
        expected = float(total[i] - aleatoric[i])
        assert math.isclose(float(line["epistemic"]), expected, rel_tol=2e-2, abs_tol=1e-5)
    assert list(line) == ["prediction", "p(iris)", "p(lily, white)", "p(rose)", "total",
                          "aleatoric", "epistemic", "note"]  # fmt: skip


def test_numbers_are_the_mixture_of_the_networks(numbers, tmp_path):
    table = prices(tmp_path / "new.csv", rows=6, seed=5)
    words = ("predict", numbers, table, "--out", tmp_path / "p.csv", "--interval", "0.8")
    assert run(*words, "--keep", "area").exit_code == 0
    model = load_run(numbers)
    (area,) = model.features.parts
    lines = read_table(tmp_path / "p.csv")
    x = torch.tensor([[(float(li["area"]) - area.mean) / area.scale] for li in lines]).double()
    x = load_learned(numbers).inputs(x).double()
    posterior, found = networks(numbers)
    with torch.no_grad():
        means = torch.stack([net.double()(x)[:, 0] for net in found])
    means = model.target.mean + model.target.scale * means.numpy()
    noise = posterior.sigma.repeat_interleave(posterior.draws).double().numpy()
    noise = (noise * model.target.scale)[:, None]
    for i, line in enumerate(lines):
        value = {key: float(text) for key, text in line.items() if key != "note"}
        assert math.isclose(value["mean"], means[:, i].mean(), rel_tol=1e-4)
        variance = (noise**2).mean() + means[:, i].var()
        assert math.isclose(value["sd"], math.sqrt(variance), rel_tol=1e-3)
        assert math.isclose(value["epistemic_sd"], means[:, i].std(), rel_tol=1e-2, abs_tol=1e-3)
        assert math.isclose(value["aleatoric_sd"], math.sqrt((noise**2).mean()), rel_tol=1e-3)
        for end, level in (("q10", 0.1), ("q90", 0.9)):
            z = (value[end] - means[:, i]) / noise[:, 0]
            below = np.mean([0.5 * (1 + math.erf(v / math.sqrt(2))) for v in z])
            assert abs(below - level) < 1e-4


def test_intervals_hold_new_rows_as_often_as_they_say(numbers, tmp_path):
    """400 new rows of the same kind: 90 % within four standard errors (0.06)."""
    table = prices(tmp_path / "new.csv", rows=400, seed=11)
    assert (
        run("predict", numbers, table, "--keep", "price", "--out", tmp_path / "p.csv").exit_code
        == 0
    )
    lines = read_table(tmp_path / "p.csv")
    inside = [float(li["q5"]) <= float(li["price"]) <= float(li["q95"]) for li in lines]
    assert abs(np.mean(inside) - 0.9) < 0.06


def test_epistemic_uncertainty_grows_away_from_the_data(numbers, tmp_path):
    table = write_table(tmp_path / "x.csv", ("area",), [(100,), (300,), (1000,)])
    result = run("predict", numbers, table)
    near, far, farther = (
        float(r["epistemic_sd"]) for r in csv.DictReader(io.StringIO(result.stdout))
    )
    assert 5 * near < far < farther


def test_columns_may_come_in_any_order_and_extra_ones_do_no_harm(classes, tmp_path):
    table = flowers(tmp_path / "a.csv", rows=9)
    rows = [(r["colour"], "", r["weight"], r["size"]) for r in read_table(table)]
    other = write_table(tmp_path / "b.csv", ("colour", "extra", "weight", "size"), rows)
    outputs = [run("predict", classes, path).stdout for path in (table, other)]
    assert outputs[0] == outputs[1]
    assert len(outputs[0].splitlines()) == 10


def test_standard_input_and_output_and_kept_columns(classes, tmp_path):
    text = flowers(tmp_path / "a.csv", rows=3).read_bytes()
    result = run("predict", classes, "-", "--keep", "kind", "--keep", "size", input=text)
    assert result.exit_code == 0, result.output
    lines = list(csv.DictReader(io.StringIO(result.stdout)))
    assert [line["kind"] for line in lines] == [r["kind"] for r in read_table(tmp_path / "a.csv")]
    assert result.stderr.strip() == "3 rows"


def test_a_kept_column_may_have_holes(classes, tmp_path):
    rows = [("1", "2", "red", "a"), ("1", "2", "red", "")]
    table = write_table(tmp_path / "a.csv", ("size", "weight", "colour", "mine"), rows)
    assert run("predict", classes, table, "--keep", "mine", "--out", tmp_path / "p").exit_code == 0
    assert [line["mine"] for line in read_table(tmp_path / "p")] == ["a", ""]


def test_a_long_file_is_read_in_pieces_with_the_same_result(classes, tmp_path, monkeypatch):
    table = flowers(tmp_path / "a.csv", rows=50)
    whole = run("predict", classes, table).stdout
    monkeypatch.setattr(predictions, "CHUNK", 7)
    pieces = run("predict", classes, table).stdout
    for a, b in zip(csv.reader(io.StringIO(whole)), csv.reader(io.StringIO(pieces)), strict=True):
        assert a[0] == b[0]
        if a[0] != "prediction":
            np.testing.assert_allclose([float(v) for v in a[1:-1]], [float(v) for v in b[1:-1]],
                                       rtol=1e-3, atol=1e-5)  # fmt: skip


def test_a_bad_row_in_the_middle_leaves_the_old_file(classes, tmp_path, monkeypatch):
    monkeypatch.setattr(predictions, "CHUNK", 4)
    table = write_table(
        tmp_path / "a.csv", ("size", "weight", "colour"), [("1", "2", "red")] * 9 + [("1", "2")]
    )
    (tmp_path / "p.csv").write_text("old")
    message = one_line(run("predict", classes, table, "--out", tmp_path / "p.csv"))
    assert "line 11: 2 cells, where the header has 3" in message
    assert (tmp_path / "p.csv").read_text() == "old"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.csv", "p.csv"]


def test_no_rows_give_a_header(classes, tmp_path):
    table = write_table(tmp_path / "a.csv", ("size", "weight", "colour"), [])
    assert run("predict", classes, table).stdout.splitlines() == [
        'prediction,p(iris),"p(lily, white)",p(rose),total,aleatoric,epistemic,note'
    ]


def test_what_is_odd_about_a_row_is_said_in_its_row(classes, tmp_path):
    """One empty cell, one new level, one word, one wrong unit and one empty row in a file."""
    rows = [("1", "2", "red"), ("1", "", "red"), ("1", "2", "green"), ("1", "oops", "red"),
            ("1", "1e20", "red"), ("", "", "")]  # fmt: skip
    table = write_table(tmp_path / "a.csv", ("size", "weight", "colour"), rows)
    result = run("predict", classes, table, "--out", tmp_path / "p.csv")
    assert result.exit_code == 0, result.output
    assert "6 rows" in result.stderr
    assert "5 have a note" in result.stderr
    assert "1 of them could not be predicted" in result.stderr
    lines = read_table(tmp_path / "p.csv")
    assert [bool(line["prediction"]) for line in lines] == [True] * 5 + [False]
    parts = ("", "'weight' is missing", "'colour' 'green' was not seen", "'oops' is no number",
             "standard deviations", "every cell is missing")  # fmt: skip
    for line, part in zip(lines, parts, strict=True):
        assert part in line["note"]
    assert lines[0]["note"] == ""


@pytest.mark.parametrize(
    ("header", "row", "options", "part"),
    [
        ("size,weight", "1,2", (), "lacks the column 'colour'"),
        ("size,weight,colour", "1,2,red", ("--keep", "id"), "no column 'id' to keep"),
        ("size,weight,colour", "1,2,red", ("--device", "warp"), "unknown device"),
        ("size,weight,colour", "1,2,red", ("--out", "no/such/folder.csv"), "make it first"),
    ],
)
def test_bad_input_is_one_line(classes, tmp_path, header, row, options, part):
    (tmp_path / "a.csv").write_text(f"{header}\n{row}\n")
    result = run("predict", classes, tmp_path / "a.csv", *(options or ("--out", tmp_path / "p")))
    assert part in one_line(result)


def test_a_wrong_interval_is_one_line(numbers, tmp_path):
    table = write_table(tmp_path / "x.csv", ("area",), [(100,)])
    result = run("predict", numbers, table, "--interval", "90", "--out", tmp_path / "p")
    assert "--interval" in one_line(result)


def test_a_folder_without_a_run_is_one_line(classes, tmp_path):
    table = write_table(tmp_path / "x.csv", ("area",), [(100,)])
    assert "run.json" in one_line(run("predict", tmp_path, table))
    (tmp_path / "run.json").write_text("{")
    assert "cannot read" in one_line(run("predict", tmp_path, table))
    (tmp_path / "run.json").write_text('{"format": 1, "rows": []}')
    assert "not of this version" in one_line(run("predict", tmp_path, table))
    (tmp_path / "run.json").write_text('{"format": 2, "rows": []}')
    assert "damaged" in one_line(run("predict", tmp_path, table))
    text = (classes / "run.json").read_text()
    (tmp_path / "run.json").write_text(text.replace('"scale": ', '"scale": -'))
    assert "damaged" in one_line(run("predict", tmp_path, table))
    (tmp_path / "run.json").write_text(text)
    (tmp_path / "quality.json").write_text((classes / "quality.json").read_text())
    assert "learned.json" in one_line(run("predict", tmp_path, table))


class Rows:
    """A CSV of flowers, five times as large as the memory that it may take, that exists only while
    it is read."""

    def __init__(self, count: int) -> None:
        row = b"1.5,20,red," + 10_000 * b"x" + b"\n"
        self.lines = itertools.chain([b"size,weight,colour,text\n"], itertools.repeat(row, count))

    def readline(self, limit: int) -> bytes:
        return next(self.lines, b"")


def test_memory_does_not_grow_with_the_file(classes, monkeypatch):
    monkeypatch.setattr(predictions, "CHUNK", 100)
    model, learned = load_run(classes), load_learned(classes)
    source = CsvFile(Rows(1_000), label="rows")
    with open(os.devnull, "w") as out:
        tracemalloc.start()
        assert predictions.write_predictions(learned, model, source, out) == (1_000, 0, 0)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 2_000_000


@pytest.mark.parametrize(("ending", "package"), [("xlsx", "openpyxl"), ("parquet", "pyarrow")])
def test_excel_and_parquet_in_and_out(classes, tmp_path, ending, package):
    """The same numbers as from CSV to CSV."""
    pytest.importorskip(package)
    table = flowers(tmp_path / "new.csv", rows=5, seed=5)
    frame = pd.read_csv(table)
    frame["when"] = pd.date_range("2024-03-01", periods=5)
    given, out = tmp_path / f"new.{ending}", tmp_path / f"p.{ending}"
    if ending == "xlsx":
        frame.to_excel(given, index=False)
    else:
        frame.to_parquet(given)
    assert run("predict", classes, table, "--out", tmp_path / "p.csv").exit_code == 0
    assert run("predict", classes, given, "--out", out, "--keep", "when").exit_code == 0
    found = pd.read_excel(out) if ending == "xlsx" else pd.read_parquet(out)
    wanted = pd.read_csv(tmp_path / "p.csv")
    assert list(found.columns) == ["when", *wanted.columns]
    assert found["when"].tolist() == [f"2024-03-0{k}" for k in range(1, 6)]
    assert found["prediction"].tolist() == wanted["prediction"].tolist()
    numbers = [name for name in wanted.columns if name not in ("prediction", "note")]
    np.testing.assert_allclose(found[numbers], wanted[numbers], rtol=1e-12)
