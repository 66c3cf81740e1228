"""Every dynamics and metric, run every way that this machine has, equal to the eager float64 step;
and the stages of the paper's table, every way.

What takes the compiler proper is in ``test_fused_step`` and in ``make gpu-check``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

from known_networks import not_checked_again
from lab import matrix, optimizer_check
from lab.matrix import Case, cases, difference, run_case
from natural_langevin import data, dynamics, preconditioners
from natural_langevin.cli.experiments.table1 import baseline_stages, stages
from natural_langevin.cli.experiments.table1.protocol import BY_NAME, PRESETS, fit_to
from natural_langevin.cli.experiments.table1.stages import Bench
from natural_langevin.dynamics import State
from natural_langevin.execution import compiled
from natural_langevin.execution.engine import Mode


@cache
def reference(case: Case) -> State:
    """Chains know nothing of each other: one alone is the first of three."""
    if case.chains == 1:
        return first_chain(reference(case._replace(chains=3)))
    return matrix.reference(case)


@cache
def reference_start(case: Case) -> State:
    if case.chains == 1:
        return first_chain(reference_start(case._replace(chains=3)))
    return matrix._start(case, torch.float64, "cpu")[3]


def first_chain(state: State) -> State:
    return pytree.tree_map(lambda leaf: leaf[:1] if leaf.ndim else leaf, state)


def here() -> list[Any]:
    """All but the compiled and the traced ones, which take seconds: Underdamped's step without
    statistics is traced in ``test_ways``, Overdamped's with them in ``test_compiled_equals_eager``.
    Eager steps, of three chains and of one, are tried with every dynamics and every metric in
    turns; the whole product is ``thorough``."""
    found: list[Any] = []
    met: set[tuple[str, int]] = set()
    for case in cases("cpu"):
        if case.way == "traced":
            found.append(pytest.param(case, marks=pytest.mark.thorough))
        elif case.way != "compiled":
            new = {(case.dynamics, case.chains), (case.metric, case.chains)} - met
            usual = case.way != "eager" or new
            found.append(case if usual else pytest.param(case, marks=pytest.mark.thorough))
            met |= new
    return found


@pytest.fixture(autouse=True, scope="module")
def _shorter() -> Iterator[None]:
    """Of every kind of step some, the first among them; a CUDA graph needs more to be replayed.
    That the rules of these layers are right is tested elsewhere."""
    with pytest.MonkeyPatch.context() as patch:
        not_checked_again(patch)
        patch.setattr(matrix, "STEPS", 6)
        patch.setattr(matrix, "BURN_IN", 3)
        yield


@pytest.mark.parametrize("case", here(), ids=str)
def test_every_way_is_the_same_step(case: Case) -> None:
    expected = reference(case._replace(way="eager"))
    moved = reference_start(case._replace(way="eager"))
    changed = difference(expected._replace(swaps=moved.swaps), moved)
    assert changed > 1e-3, "nothing moved: nothing was compared"
    assert difference(run_case(case), expected) < matrix.TOLERANCE


def test_the_matrix_is_whole() -> None:
    """Every integrator and metric of the registries, and each way the other machine has."""
    named = {type(one) for one in matrix.INTEGRATORS.values()}
    assert named == set(dynamics.REGISTRY.values())
    for device, ways in (("cpu", {"kernels", "native"}), ("cuda", {"graph", "kernels", "whole"})):
        found = cases(device)
        assert {c.way for c in found} == ways | {"eager", "traced", "compiled"}
        way = "eager" if device == "cpu" else "graph"
        pairs = {(c.dynamics, c.metric, c.chains) for c in found if c.way == way}
        assert {c.dynamics for c in found} >= matrix.FEATURES.keys()
        for metric in preconditioners.REGISTRY:
            fit = [d for d in matrix.INTEGRATORS if metric in matrix.metrics_of(d)]
            assert {(d, metric, n) for d in fit for n in (1, 3)} <= pairs


def test_chains_start_where_they_should() -> None:
    """And the way down leaves the state that it begins at as it was."""
    assert matrix.check_start("cpu")["problem"] is None


def test_the_command_records_what_it_saw(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    good = Case("sgd", "", 1, "eager")
    monkeypatch.setattr(matrix, "cases", lambda device: [good, good._replace(way="kernels")])
    monkeypatch.setattr(matrix.optimizer_check, "run_all", lambda device, say: [])
    assert matrix.main(["--device", "cpu", "--out", str(tmp_path / "check.json")]) == 1
    record = json.loads((tmp_path / "check.json").read_text())
    assert [row["problem"] is None for row in record["cases"]] == [True, False, True]
    assert "instead of 'kernels'" in record["cases"][1]["problem"]
    assert "2 of 3 cases agree" in capsys.readouterr().out


TOY = replace(
    PRESETS["quick"], hidden=(6,), steps=12, select_steps=6, extra_select_steps=6, burn_in=4,
    thin=4, select_thin=1, batch_size=20, train_scored=50, mc_dropout=2, pooled=2, seeds=1,
    step_sizes=1, prior_variances=(0.1,), dropout_rates=(0.2,),
)  # fmt: skip


@pytest.fixture(scope="module")
def digits() -> data.Dataset:
    return data.load("digits")


@pytest.mark.parametrize(
    ("mode", "names"),
    [
        ("eager", ("sgd", "dropout")),
        ("auto", ("sgd", "dropout", *BY_NAME)),
        ("compiled", ("dropout",)),
        pytest.param("compiled", ("sgd",), marks=pytest.mark.thorough),
    ],
)
def test_every_stage_runs_every_way(
    mode: Mode, names: tuple[str, ...], digits: data.Dataset, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    """Compiled up to the compiler proper: the baselines once broke before that."""
    monkeypatch.setattr(compiled, "BACKEND", "eager")
    monkeypatch.setattr(baseline_stages, "mode_of", lambda bench: mode)
    preset = fit_to(TOY, len(digits.train_x))
    bench = Bench(preset, digits, torch.device("cpu"), tmp_path, progress=False)
    for kind in (name for name in names if name not in BY_NAME):
        chosen = baseline_stages.select(bench, kind)
        rows = baseline_stages.final(bench, kind, chosen["ranking"])["rows"]
        assert len(rows) == 2
    for method in (BY_NAME[name] for name in names if name in BY_NAME):
        ranking = [{"step_size": method.grid[0], "prior_variance": 0.1, "schedule": "halving"}]
        if method.like is None:
            ranking = stages.select(bench, method)["ranking"]
        assert stages.final(bench, method, ranking)["rows"]
    assert "compiling failed" not in caplog.text
    assert "running eagerly" not in caplog.text


def test_the_optimizer_has_rows_of_its_own() -> None:
    row = optimizer_check.check("residual", "quasi-diagonal", "overdamped", "one graph", "cpu")
    assert row["problem"] is None
    assert 0 < row["difference"] < 1e-5
    missing = optimizer_check.check("residual", "no such metric", "overdamped", "one graph", "cpu")
    assert "no such metric" in missing["problem"]
