"""``natural-langevin bench`` as a user meets it, and what it measures."""

from __future__ import annotations

import json
import math

import pytest
import torch
from typer.testing import CliRunner

from natural_langevin.cli.app import app
from natural_langevin.cli.experiments import bench, bench_networks

SMALL = bench.Options(network="12-16-16-10", chains=(1, 2), repeats=2, threads=1)


@pytest.fixture
def command(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(bench, "SECONDS", 0.02)
    return lambda *words: CliRunner().invoke(app, ["bench", *map(str, words)])


def test_a_short_run_leaves_results(command, tmp_path):
    """The paper's network at its real size, two contenders, one repeat."""
    out = tmp_path / "bench.json"
    result = command("--device", "cpu", "--quick", "--repeats", 1, "--only", "randn", "--out", out)
    assert result.exit_code == 0, result.output
    found = json.loads(out.read_text())
    assert found["config"]["network"] == "784-400-400-10"
    assert {"cpu", "cores", "device"} <= set(found["machine"])
    assert [row["name"] for row in found["rows"]] == ["SGD", "SGD + randn"]
    assert found["rows"][0]["ratio"] == 1
    assert f"{found['rows'][1]['ratio']:.2f}" in result.output
    assert out.with_suffix(".png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["--device", "warp"], "unknown device"),
        (["--chains", "0"], "at least 1"),
        (["--network", "12"], "784-400-400-10"),
        (["--network", "a-b"], "got 'a-b'"),
        (["--network", "resnet"], "resnet18, gpt, got 'resnet'"),
        (["--only", "Adamax"], "there are SGD, SGD + randn, Adam"),
        (["--repeats", "-1"], "negative"),
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


@pytest.mark.parametrize(
    ("network", "chains"),
    [
        ("12-16-10", (1, 2)),
        pytest.param("5-8-1", (1, 2), marks=pytest.mark.thorough),
        pytest.param("lstm", (1, 2), marks=pytest.mark.thorough),
    ],
)
def test_everybody_is_there_with_all_repeats(monkeypatch, network, chains):
    """With a clock that is known: a step takes 2 ms, whoever takes it."""
    now = [0.0]
    monkeypatch.setattr(bench.time, "perf_counter", lambda: now[0])
    timed = bench._timed

    def steps(advance, count, device):
        def known(count):
            advance(min(count, 2))
            now[0] += 0.002 * count

        return timed(known, count, device)

    monkeypatch.setattr(bench, "_timed", steps)
    options = bench.Options(network=network, chains=chains, repeats=2)
    found = bench.run(options)
    rows = found["rows"]
    there = [key for key in bench.contenders(options) if key[0] not in found["not_installed"]]
    assert [(row["name"], row["chains"]) for row in rows] == there
    assert {"Adam", "optimizer, QDOP", "QDOP"} <= {name for name, _ in there}
    for row in rows:
        assert row["microseconds"] == pytest.approx([2000 / row["chains"]] * 2)
        assert row["ratio"] == pytest.approx(1 / row["chains"])


def test_sgld_by_hand_samples_at_temperature_1():
    """40 small steps are noise above all: their spread is sqrt(2 eta 40 / N).

    650 parameters give it a relative standard error of 1/sqrt(1300) = 2.8 %; the bound is 5 of
    them, which a forgotten factor of two (41 %) or N exceeds by far."""
    own = bench.task(SMALL.network, rows=64, device="cpu")
    model = own.build()
    before = torch.cat([p.detach().flatten() for p in model.parameters()])
    assert len(before) == 650
    bench.sgld(own._replace(build=lambda: model)).advance(40)
    after = torch.cat([p.detach().flatten() for p in model.parameters()])
    expected = math.sqrt(2 * bench.STEP_SIZE * 40 / 64)
    assert abs((after - before).std() / expected - 1) < 5 / math.sqrt(2 * 650)


@pytest.mark.parametrize("name", bench_networks.BUILT)
def test_every_network_has_a_loss(name):
    """On meta tensors: no step of a large one is taken here."""
    task = bench_networks.task(name, rows=2, device="meta")
    outputs = task.build()(task.x)
    assert task.loss(outputs, task.y).shape == ()
    assert outputs.shape[:-1] == task.y.shape
