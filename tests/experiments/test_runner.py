"""The whole table at toy size: every stage, every row, killed and resumed, refused when it must."""

import contextlib
import json
import os
import shutil
import signal
import time
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch

import warm
from natural_langevin import data
from natural_langevin.cli.experiments import runner
from natural_langevin.cli.experiments.runner import STAGES, Request, RunError, _resolve, run
from natural_langevin.cli.experiments.table1 import results, stages
from natural_langevin.cli.experiments.table1.protocol import BY_NAME, METHODS, PRESETS, fit_to
from natural_langevin.cli.experiments.table1.stages import Bench
from natural_langevin.cli.experiments.table1.training import DivergedError
from natural_langevin.cli.pages import load_results, render
from short_recipe import shorten

TOY = replace(
    PRESETS["quick"],
    hidden=(12,),
    steps=40,
    select_steps=12,
    extra_select_steps=12,
    burn_in=10,
    thin=5,
    select_thin=3,
    batch_size=20,
    train_scored=200,
    mc_dropout=2,
    pooled=2,
    default_seeds=2,
    default_steps=40,
    schedules=("halving", "k^(-1/3)"),
)

SCRIPT = """
import json, os, sys
from dataclasses import replace
from pathlib import Path
import pytest
import torch
from natural_langevin.cli.experiments import runner
from natural_langevin.cli.experiments.table1 import protocol
from natural_langevin.run import loop
sys.path.insert(0, TESTS)
from short_recipe import shorten
shorten(pytest.MonkeyPatch())
torch.set_num_threads(1)
loop.SAVE_SECONDS = 0.0
os.fsync = lambda descriptor: None  # as in tests/conftest.py
values = json.loads(sys.argv[2])
names = ("hidden", "schedules", "prior_variances", "dropout_rates", "deviations")
values |= {k: tuple(values[k]) for k in names}
protocol.PRESETS["quick"] = protocol.Preset(**values)
for _ in sys.stdin:
    child = os.fork()
    if child == 0:
        runner.run(runner.Request(
            dataset="digits", preset="quick", out=Path(sys.argv[1]), resume=True, progress=False,
        ))
        os._exit(0)
    print(child, flush=True)
    print(os.waitpid(child, 0)[1], flush=True)
"""


@pytest.fixture
def toy(monkeypatch):
    monkeypatch.setitem(PRESETS, "quick", TOY)


def request(out: Path, **changes) -> Request:
    base = Request(dataset="digits", preset="quick", out=out, progress=False)
    return replace(base, **changes)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """One undisturbed run that several tests look at."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(PRESETS, "quick", TOY)
        shorten(patch)
        out = tmp_path_factory.mktemp("toy") / "run"
        run(request(out))
        return out, results.assemble(out, seconds=1.0)


def numbers(value):
    """Results without what legitimately differs between two runs: times and dates."""
    if isinstance(value, dict):
        timed = ("seconds", "seconds_per_update", "cost", "created", "total_seconds")
        return {k: numbers(v) for k, v in value.items() if k not in timed}
    return [numbers(v) for v in value] if isinstance(value, list) else value


def test_every_row_of_the_table_is_there(finished):
    _, table = finished
    rows = {(row["method"], row["estimate"]) for row in table["rows"]}
    expected = {(m.name, e) for m in METHODS for e in ("ensemble", "mean")}
    expected |= {("qdop", "pooled"), ("sgd", "point"), ("dropout", "point")}
    expected |= {("deep-ensemble", "pooled"), ("mc-dropout", "ensemble")}
    expected |= {("defaults", "ensemble")}
    assert rows == expected
    assert len(table["rows"]) == len(expected)


def test_rows_hold_means_spreads_and_values(finished):
    _, table = finished
    for row in table["rows"]:
        for split in ("train", "test"):
            for metric in ("nll", "accuracy", "brier", "ece"):
                cell = row[split][metric]
                assert len(cell["values"]) == TOY.seeds
                assert min(cell["values"]) <= cell["mean"] <= max(cell["values"])
        assert 0 <= row["test"]["accuracy"]["mean"] <= 100
        assert row["cost"] > 0


def test_the_bug_row_says_its_temperature(finished):
    _, table = finished
    (row,) = [r for r in table["rows"] if r["method"] == "rmsprop-bug" and r["estimate"] == "mean"]
    assert row["settings"]["temperature"] == pytest.approx(1 / 1437, rel=1e-5)
    assert "1/N" in row["note"]


def test_choices_are_made_on_validation_alone(finished):
    out, _ = finished
    for name in STAGES:
        if name.endswith("-select"):
            stage = json.loads((out / "stages" / f"{name}.json").read_text())
            cells = [v for g in stage["grids"] for row in g["nll"] for v in row if v is not None]
            (grid,) = [g for g in stage["grids"] if g["chosen"]]
            best = grid["chosen"]
            assert best == stage["ranking"][0]
            column = best.get("prior_variance", best.get("dropout_rate"))
            r = grid["step_sizes"].index(best["step_size"])
            c = grid["prior_variances"].index(column)
            assert grid["nll"][r][c] == min(cells)


def test_the_results_are_valid_json_and_make_a_page(finished, tmp_path):
    _, table = finished
    path = tmp_path / "results.json"
    runner.write_json(path, table)
    page = render(load_results(path))
    assert "QDOP" in page


@contextlib.contextmanager
def forking(out: Path):
    """A function that starts the run in a process of its own: its id, and how to await its end."""
    (commands, asking), (hearing, answers) = os.pipe(), os.pipe()
    script = out.with_name("script.py")
    script.write_text(SCRIPT.replace("TESTS", repr(str(Path(__file__).parents[1]))))
    server = warm.start(
        [script, out, json.dumps(asdict(TOY))], stdin=commands, stdout=answers, stderr=2
    )
    for theirs in (commands, answers):
        os.close(theirs)
    with os.fdopen(hearing) as heard:

        def answer() -> int:
            return int(heard.readline())

        def started():
            asked.write("run\n")
            asked.flush()
            return answer(), answer

        with os.fdopen(asking, "w") as asked:
            yield started
        assert server.wait(timeout=60) == 0


def test_killed_at_any_moment_it_ends_with_the_same_numbers(finished, tmp_path):
    _, undisturbed = finished
    out = tmp_path / "run"
    with forking(out) as started:
        for finished_stages in (1, 4, 8):  # killed in the middle of the stage that follows
            pid, status = started()
            began = time.monotonic()
            while len(list((out / "stages").glob("*.json"))) < finished_stages:
                assert time.monotonic() - began < 120
                time.sleep(0.01)
            time.sleep(0.2)
            os.kill(pid, signal.SIGKILL)
            assert status() == signal.SIGKILL, "the run ended before it could be killed"
        before = len(list((out / "stages").glob("*.json")))
        # What a process killed while writing leaves behind, whether or not one of ours did.
        (out / "stages" / ".sgd-select.0.checkpoint.safetensors.0.part").write_bytes(b"half")
        assert started()[1]() == 0
    assert before < len(STAGES), "the kills came too late to prove anything"
    again = results.assemble(out, seconds=1.0)
    assert numbers(again) == numbers(undisturbed)
    assert not list((out / "stages").glob("*checkpoint*"))


@pytest.mark.thorough
def test_stages_side_by_side_give_the_same_numbers(finished, tmp_path, toy):
    _, one_by_one = finished
    out = tmp_path / "run"
    run(request(out, jobs=2))
    assert numbers(results.assemble(out, seconds=2.0)) == numbers(one_by_one)


def test_a_finished_run_is_not_run_again(finished, toy, monkeypatch):
    out, _ = finished
    monkeypatch.setattr(runner, "run_stage", lambda *_: pytest.fail("ran a finished stage"))
    assert run(request(out, resume=True)) == out


def test_a_folder_in_use_is_refused_without_resume(finished, toy):
    out, _ = finished
    with pytest.raises(RunError, match="--resume"):
        run(request(out))


def test_another_configuration_is_refused_by_name(finished, toy):
    out, _ = finished
    before = sorted(p.name for p in (out / "stages").iterdir())
    with pytest.raises(RunError, match="seeds"):
        run(request(out, seeds=3, resume=True))
    assert sorted(p.name for p in (out / "stages").iterdir()) == before


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"{}", b"\xff\xfe", b"null"])
def test_a_damaged_stage_file_is_named_with_the_remedy(finished, tmp_path, content):
    whole, _ = finished
    out = tmp_path / "run"
    shutil.copytree(whole, out)
    stage = sorted((out / "stages").glob("*.json"))[0]
    stage.write_bytes(content)
    with pytest.raises(RunError, match=r"is damaged.*--resume") as error:
        results.assemble(out, seconds=1.0)
    assert str(stage.parent) in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"preset": "huge"}, "quick"), ({"seeds": 0}, "at least 1")],
)
def test_wrong_requests_are_refused(tmp_path, changes, message):
    with pytest.raises(RunError, match=message):
        run(request(tmp_path / "run", **changes))


def test_several_processes_are_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(RunError, match="without torchrun"):
        run(request(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_a_preset_learns_from_its_first_images_alone(monkeypatch):
    whole = data.digits()
    monkeypatch.setitem(PRESETS, "quick", replace(TOY, train_images=600))
    preset, found = _resolve(Request(dataset="digits", preset="quick"))
    assert torch.equal(found.train_x, whole.train_x[:600])
    assert torch.equal(found.train_y, whole.train_y[:600])
    assert len(found.test_x) == len(whole.test_x)
    assert preset.validation == 100
    assert "last 100 of 600" in preset.deviations[-1]


def test_an_output_folder_that_cannot_be_written_is_one_clear_error(tmp_path, toy):
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    with pytest.raises(RunError, match="cannot use the folder"):
        run(request(blocked / "run"))


def toy_bench(tmp_path, test_y):
    digits = data.digits()
    changed = replace(digits, test_y=test_y(digits.test_y), test_x=digits.test_x * 0.5)
    folder = tmp_path / "stages"
    folder.mkdir(parents=True)
    preset = fit_to(TOY, len(digits.train_x))
    return Bench(preset, changed, torch.device("cpu"), folder, progress=False)


def test_test_data_have_no_say_in_the_choice(tmp_path):
    method = BY_NAME["qdop"]
    plain = stages.select(toy_bench(tmp_path / "a", lambda y: y), method)
    scrambled = stages.select(toy_bench(tmp_path / "b", lambda y: (y + 3) % 10), method)
    assert numbers(plain) == numbers(scrambled)


def test_a_diverging_choice_gives_way_to_the_next_best():
    tried = []

    def train(rank, chosen):
        tried.append((rank, chosen["step_size"]))
        if chosen["step_size"] > 0.5:
            raise DivergedError(2)
        return {"rows": [{"note": None}]}

    ranking = [{"step_size": 1.0}, {"step_size": 0.9}, {"step_size": 0.1}, {"step_size": 0.01}]
    result = stages.first_to_survive("toy", ranking, train)
    assert tried == [(0, 1.0), (1, 0.9), (2, 0.1)]
    assert "2 networks diverged at step size 1" in result["rows"][0]["note"]
    with pytest.raises(stages.StageError, match="diverged"):
        stages.first_to_survive("toy", ranking[:2], train)


def test_every_choice_has_a_checkpoint_of_its_own(tmp_path):
    bench = toy_bench(tmp_path, lambda y: y)
    first, second = (bench.training("qdop-final", rank)["checkpoint"] for rank in (0, 1))
    assert first != second
