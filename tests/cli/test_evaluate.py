"""evaluate: its scores against the formulas, from the predictions that predict itself wrote."""

import json
import math

import numpy as np

from tables import flowers, one_line, prices, read_table, run, write_table


def evaluated(folder, table, tmp_path) -> dict:
    result = run("evaluate", folder, table, "--json", tmp_path / "scores.json")
    assert result.exit_code == 0, result.output
    found = json.loads((tmp_path / "scores.json").read_text())
    assert found["diagnosis"]["summary"] in result.output
    return found | {"said": result.output}


def test_scores_of_classes(classes, tmp_path):
    table = flowers(tmp_path / "new.csv", rows=60, seed=3)
    found = evaluated(classes, table, tmp_path)
    run("predict", classes, table, "--keep", "kind", "--out", tmp_path / "p.csv")
    lines = read_table(tmp_path / "p.csv")
    right = [line["prediction"] == line["kind"] for line in lines]
    names = ("iris", "lily, white", "rose")
    p = np.array([[float(line[f"p({name})"]) for name in names] for line in lines])
    y = np.array([names.index(line["kind"]) for line in lines])
    scores = found["scores"]
    assert math.isclose(scores["accuracy"], np.mean(right), rel_tol=1e-9)
    assert math.isclose(scores["nll"], -np.log(p[np.arange(60), y]).mean(), rel_tol=1e-3)
    assert math.isclose(scores["brier"], ((p - np.eye(3)[y]) ** 2).sum(1).mean(), rel_tol=1e-3)
    bins = found["reliability"]
    gaps = np.abs(np.subtract(bins["confidence"], bins["accuracy"])) * bins["count"]
    assert math.isclose(scores["ece"], gaps.sum() / 60, rel_tol=1e-3, abs_tol=1e-4)
    assert sum(bins["count"]) == sum(found["uncertainty"]["total"]) == found["rows"] == 60
    assert f"{scores['nll']:.4f}" in found["said"]


def test_scores_of_numbers(numbers, tmp_path):
    table = prices(tmp_path / "new.csv", rows=80, seed=3)
    found = evaluated(numbers, table, tmp_path)
    run("predict", numbers, table, "--keep", "price", "--out", tmp_path / "p.csv")
    rows = read_table(tmp_path / "p.csv")
    lines = [{k: float(v) for k, v in line.items() if k != "note"} for line in rows]
    error = np.array([line["mean"] - line["price"] for line in lines])
    inside = np.mean([line["q5"] <= line["price"] <= line["q95"] for line in lines])
    scores = found["scores"]
    assert math.isclose(scores["rmse"], math.sqrt((error**2).mean()), rel_tol=1e-3)
    assert math.isclose(scores["coverage"], inside, abs_tol=1e-9)
    # A normal density with the same mean and variance is close to the mixture's.
    sd = np.array([line["sd"] for line in lines])
    normal = (0.5 * (error / sd) ** 2 + np.log(sd) + 0.5 * math.log(2 * math.pi)).mean()
    assert abs(scores["nll"] - normal) < 0.05
    assert found["coverage"]["observed"][-1] == scores["coverage"]
    assert found["coverage"]["observed"] == sorted(found["coverage"]["observed"])


def test_bad_input_is_one_line(classes, tmp_path):
    rows = [("1", "2", "red", "tulip")]
    header = ("size", "weight", "colour")
    other = write_table(tmp_path / "a.csv", (*header, "kind"), rows)
    said = one_line(run("evaluate", classes, other))
    assert "no rows with a target that was learned (first: 'tulip', a.csv, line 2)" in said
    without = write_table(tmp_path / "b.csv", header, [rows[0][:3]])
    assert "no column 'kind'" in one_line(run("evaluate", classes, without))
    empty = write_table(tmp_path / "c.csv", (*header, "kind"), [])
    assert "no rows with a target" in one_line(run("evaluate", classes, empty))
    assert "run.json" in one_line(run("evaluate", tmp_path, other))


def test_a_row_of_another_class_is_told_and_the_others_are_scored(classes, tmp_path):
    table = flowers(tmp_path / "new.csv", rows=30, seed=3)
    rows = read_table(table)
    rows[2]["kind"] = "tulip"
    write_table(table, list(rows[0]), [list(row.values()) for row in rows])
    found = evaluated(classes, table, tmp_path)
    assert found["rows"] == 29
    assert (
        "1 of 30 rows are not scored: in 1 'kind' is not a class of the training rows"
        in found["said"]
    )
    assert "(first: 'tulip', new.csv, line 4)" in found["said"]


def test_a_dataset_is_scored_on_its_test_part(tmp_path):
    small = ("--hidden", "8", "--chains", "1", "--steps", "20")
    assert run("train", "digits", "--out", tmp_path / "d", *small).exit_code == 0
    found = evaluated(tmp_path / "d", "digits", tmp_path)
    assert found["rows"] == 360
    trained = json.loads((tmp_path / "d" / "quality.json").read_text())
    assert found["scores"] == trained["scores"]
