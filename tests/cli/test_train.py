"""train as a user meets it: what it says, what it leaves, what it refuses, how it goes on."""

import json

import numpy as np
import pytest

import natural_langevin.execution.engine
from natural_langevin.posterior.posterior import Posterior
from natural_langevin.tabular.fit import split
from natural_langevin.tabular.run import load_learned, load_run
from tables import SMALL, flowers, one_line, prices, run, write_table


def test_it_says_what_it_found_and_what_to_do_next(classes):
    said = (classes.parent / "said.txt").read_text()
    for part in (
        "flowers.csv: 96 rows to learn 'kind' from, 24 held out",
        "classification, because kind holds words",
        "lily, white",
        "2 numeric columns, standardised; one-hot encoded: colour (2 levels)",
        "garden: the same in every row: left out",
        "4-8 units, relu",
        "2 chains of 200 steps",
        "R-hat",
        f"natural-langevin predict {classes} NEW.csv",
    ):
        assert part in said, said


def test_the_scores_shown_are_those_written_and_beat_a_guess(classes, numbers):
    for folder, score in ((classes, "nll"), (numbers, "rmse")):
        quality = json.loads((folder / "quality.json").read_text())
        said = (folder.parent / "said.txt").read_text()
        value = quality["scores"][score]
        assert (f"{value:.4f}" if score == "nll" else f"{value:.4g}") in said
        for key, plain in quality["baseline"].items():
            assert (quality["scores"][key] < plain) == (key != "accuracy")
        assert quality["rows"] == 24
    assert quality["scores"]["rmse"] < 20  # the noise is 10, always guessing the mean 58
    assert 0.7 < quality["scores"]["coverage"] <= 1


def test_the_folder_holds_no_pickle_and_no_checkpoint(classes):
    names = sorted(str(p.relative_to(classes)) for p in classes.rglob("*") if p.is_file())
    assert names[0] == "how_sure.png"
    assert names[-2:] == ["quality.json", "run.json"]
    assert all(name.endswith((".json", ".safetensors")) for name in names[1:])
    assert isinstance(load_learned(classes).best, Posterior)


def test_standardisation_comes_from_training_rows_alone(numbers):
    stored = json.loads((numbers / "run.json").read_text())
    (area,) = stored["features"]["columns"]
    data = np.loadtxt(numbers.parent / "prices.csv", delimiter=",", skiprows=1)
    assert stored["rows"] == [96, 24]
    assert not np.isclose(area["mean"], data[:, 0].mean(), rtol=1e-9)
    inside = split(120, 0.2, None, 0)[0]
    np.testing.assert_allclose(area["mean"], data[inside, 0].mean(), rtol=1e-12)
    np.testing.assert_allclose(area["scale"], data[inside, 0].std(), rtol=1e-12)
    np.testing.assert_allclose(stored["target"]["scale"], data[inside, 1].std(), rtol=1e-12)


def interrupted(monkeypatch, at: int):
    """Ctrl-C once the engine has done `at` steps, as the sampler's own loop sees it."""
    run_steps = natural_langevin.execution.engine.Engine.run

    def stopping(self, state, start, count):
        if start >= at:
            raise KeyboardInterrupt
        return run_steps(self, state, start, count)

    monkeypatch.setattr(natural_langevin.execution.engine.Engine, "run", stopping)


def test_an_interrupted_run_goes_on_to_the_same_result(tmp_path, monkeypatch):
    table = flowers(tmp_path / "flowers.csv", rows=40)
    words = ["train", table, "--target", "kind", "--hidden", "8", "--chains", "2", "--steps", "100"]
    whole = run(*words, "--out", tmp_path / "whole")
    assert whole.exit_code == 0, whole.output
    # The step size was chosen by held-out rows, and the folder says so.
    assert load_run(tmp_path / "whole").settings.step_size == "auto"
    assert "Chosen  " in whole.output
    assert "held-out NLL" in json.loads((tmp_path / "whole/quality.json").read_text())["reason"]
    with monkeypatch.context() as patch:
        interrupted(patch, at=90)
        stopped = run(*words, "--out", tmp_path / "part")
    assert stopped.exit_code == 130
    assert "--resume" in stopped.output
    assert "not finished" in one_line(run("predict", tmp_path / "part", table))
    assert "not finished" in one_line(run("report", tmp_path / "part"))
    assert "--resume" in one_line(run(*words, "--out", tmp_path / "part"))

    other = run(*words, "--out", tmp_path / "part", "--resume", "--seed", "1")
    assert "holds another run" in one_line(other)
    rest = run(*words, "--out", tmp_path / "part", "--resume")
    assert rest.exit_code == 0, rest.output
    pair = [load_learned(tmp_path / n).best for n in ("whole", "part")]
    for name, samples in pair[0].samples.items():
        assert samples.equal(pair[1].samples[name])
    files = [(tmp_path / n / "quality.json").read_text() for n in ("whole", "part")]
    assert files[0] == files[1].replace("part", "whole")

    # Finished: shown again at once, without a step.
    with monkeypatch.context() as patch:
        interrupted(patch, at=0)
        again = run(*words, "--out", tmp_path / "part", "--resume")
    assert again.exit_code == 0
    assert "accuracy" in again.output


def test_it_learns_from_the_rows_held_out_once_they_have_scored_it(tmp_path):
    table = prices(tmp_path / "prices.csv", rows=40)
    words = ("train", table, "--target", "price", "--out", tmp_path / "r", *SMALL, "--steps", "60")
    assert run(*words).exit_code == 0
    before = json.loads((tmp_path / "r/quality.json").read_text())
    assert "refit" not in before
    assert "--overwrite" in one_line(run(*words))
    result = run(*words, "--overwrite", "--refit")
    assert result.exit_code == 0, result.output
    assert "has learned from all 40." in result.output
    after = json.loads((tmp_path / "r/quality.json").read_text())
    assert after["refit"] == 40
    assert after["scores"] == before["scores"]
    assert load_learned(tmp_path / "r").best.config["num_data"] == 40
    (area,) = after["importance"]
    assert area["column"] == "area"
    assert area["lost"] > 2 * area["error"] > 0


def test_digits_and_arrays_need_no_target(tmp_path):
    result = run("train", "digits", "--out", tmp_path / "d", *SMALL, "--steps", "20")
    assert result.exit_code == 0, result.output
    assert "1,437 rows to learn 'y' from, 360 separate rows to test it" in result.output
    assert "as they are" in result.output
    rng = np.random.default_rng(0)
    x = rng.normal(size=(50, 2, 2))
    np.savez(tmp_path / "a.npz", x=x, y=np.array(["b", "a"])[(x.sum((1, 2)) > 0).astype(int)])
    result = run("train", tmp_path / "a.npz", "--out", tmp_path / "n", *SMALL, "--steps", "20")
    assert result.exit_code == 0, result.output
    assert load_run(tmp_path / "n").target.classes == ("a", "b")
    assert load_run(tmp_path / "n").features.names == ("x0", "x1", "x2", "x3")


def test_nothing_held_out_is_said(tmp_path):
    table = prices(tmp_path / "prices.csv", rows=20)
    words = ("train", table, "--target", "price", "--out", tmp_path / "r", "--hold-out", "0")
    result = run(*words, *SMALL, "--steps", "20", "--hidden", "")
    assert result.exit_code == 0, result.output
    assert "none held out" in result.output
    assert "Network  1 units" in result.output
    assert run("report", tmp_path / "r").exit_code == 0


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ((), "--target with one of size, weight, colour, garden, kind"),
        (("--target", "Kind"), "there is no column 'Kind' (--target): did you mean 'kind'?"),
        (("--target", "kind", "--drop", "kind"), "is the target and cannot be left out"),
        (("--target", "kind", "--steps", "2"), "--steps must be at least 8, got 2"),
        (("--target", "kind", "--chains", "0"), "--chains must be a positive integer, got 0"),
        (("--target", "kind", "--seed", "-1"), "--seed"),
        (("--target", "kind", "--task", "guess"), "classification or regression"),
        (("--target", "kind", "--task", "regression"), "holds words such as"),
        (("--target", "kind", "--drop", "no"), "no column 'no' to leave out"),
        (("--target", "kind", "--categorical", "no"), "no column 'no'"),
        (("--target", "kind", "--hidden", "a,b"), "--hidden"),
        (("--target", "kind", "--hidden", "0"), "--hidden"),
        (("--target", "kind", "--step-size", "-1"), "--step-size"),
        (("--target", "kind", "--step-size", "fast"), "auto or a number such as 0.1, got 'fast'"),
        (("--target", "kind", "--prior-variance", "0"), "--prior-variance"),
        (("--target", "kind", "--hold-out", "2"), "--hold-out"),
        (("--target", "kind", "--device", "warp"), "unknown device"),
    ],
)
def test_a_wrong_option_is_one_line_with_the_remedy(tmp_path, options, part):
    table = flowers(tmp_path / "flowers.csv")
    result = run("train", table, "--out", tmp_path / "run", *options)
    assert part in one_line(result)
    assert not (tmp_path / "run" / "posterior").exists()


def test_bad_data_and_folders_are_one_line(tmp_path):
    out = ("--out", tmp_path / "run", "--target", "y")
    assert "no file 'nowhere.csv'" in one_line(run("train", "nowhere.csv", *out))
    few = write_table(tmp_path / "few.csv", ("a", "y"), [(1, 2), (2, 3)])
    assert "at least 10" in one_line(run("train", few, *out))
    short = write_table(tmp_path / "short.csv", ("a", "y"), [(1, 2)] * 10 + [(3,)])
    assert "line 12: 1 cells, where the header has 2" in one_line(run("train", short, *out))
    good = write_table(tmp_path / "good.csv", ("a", "y"), [(i, i * 0.5) for i in range(20)])
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("keep me")
    result = run("train", good, "--target", "y", "--out", tmp_path / "full")
    assert "something else" in one_line(result)
    assert (tmp_path / "full" / "mine.txt").read_text() == "keep me"
    (tmp_path / "file").write_text("")
    result = run("train", good, "--target", "y", "--out", tmp_path / "file" / "run")
    assert "is a file, where a folder should be" in one_line(result)


def test_chains_that_all_diverge_are_one_line(tmp_path):
    table = prices(tmp_path / "prices.csv", rows=20)
    words = ("train", table, "--target", "price", "--out", tmp_path / "r", *SMALL)
    result = run(*words, "--steps", "100", "--step-size", "1e30", "--prior-variance", "1")
    assert result.exit_code == 2
    assert "non-finite" in result.output
    assert "a tenth" in result.output
    assert "--step-size auto" in result.output
    assert "Traceback" not in result.output


def test_an_ordinary_file_needs_one_attempt_and_everything_is_said(tmp_path):
    """An identifier, dates, words, gaps and numbers with commas; predict takes what comes."""
    rng = np.random.default_rng(0)
    rows = [
        (
            f"C{k}", f"{rng.integers(1, 29)}.{rng.integers(1, 13)}.2023",
            ("Rome", "Oslo")[k % 2] if k % 9 else "", f"1.{rng.integers(100, 999)},50",
            "7", f"{rng.lognormal():.3f} €".replace(".", ",") if k % 30 else "NA",
        )
        for k in range(60)
    ]  # fmt: skip
    names = ("customer", "joined", "town", "income", "garden", "spent")
    table = tmp_path / "c.csv"
    text = "\n".join(";".join(map(str, row)) for row in [names, *rows]) + "\n"
    table.write_bytes(text.replace("Rome", "Zürich").encode("cp1252"))
    words = ("train", table, "--target", "spent", "--out", tmp_path / "r", *SMALL, "--steps", "20")
    result = run(*words)
    assert result.exit_code == 0, result.output
    said = " ".join(result.output.split())
    notices = json.loads((tmp_path / "r" / "run.json").read_text())
    kept = [*notices["notices"], *notices["features"]["notices"]]
    for part in ("2 of 60 rows lack the target (first: c.csv, line 2)", "customer: ", "town: ",
                 "joined: dates", "commas are read as decimals", "garden: the same",
                 "read as Windows-1252", "spent: € left out"):  # fmt: skip
        assert part in said
        assert any(part in notice for notice in kept)
    new = tmp_path / "new.csv"
    new.write_text("town;joined;income\nParis;;1.200,00\n")
    assert run("predict", tmp_path / "r", new).exit_code == 0


def test_settings_that_cannot_be_had_leave_nothing_in_the_way(tmp_path):
    table = prices(tmp_path / "prices.csv", rows=20)
    words = ("train", table, "--target", "price", "--out", tmp_path / "r", "--steps", "8")
    refused = run(*words, "--hidden", "90000000", "--chains", "1")
    assert "parameters" in one_line(refused)
    assert run(*words, *SMALL).exit_code == 0


def test_a_damaged_checkpoint_is_one_line(tmp_path, monkeypatch):
    table = prices(tmp_path / "prices.csv", rows=20)
    words = ("train", table, "--target", "price", "--out", tmp_path / "r", *SMALL, "--steps", "200")
    words = (*words, "--step-size", "0.001")
    with monkeypatch.context() as patch:
        interrupted(patch, at=160)
        assert run(*words).exit_code == 130
    for path in (tmp_path / "r" / "checkpoint").rglob("*"):
        if path.is_file():
            path.write_bytes(b"nonsense")
    result = run(*words, "--resume")
    assert result.exit_code == 2
    assert "Traceback" not in result.output
    assert "natural-langevin: " in result.output
