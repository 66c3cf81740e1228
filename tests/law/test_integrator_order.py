"""The order of every integrator, measured: the bias of its stationary law against the step size."""

import json
from pathlib import Path

import pytest
from integrator_order import ETAS, LEADING, THEORY, bias, slope

RESULTS = Path(__file__).parents[2] / "results" / "integrator-order.json"


@pytest.mark.parametrize(("target", "name"), THEORY)
def test_the_slope_is_the_order(target: str, name: str) -> None:
    """The fit leaves out eta^2, 0.6 % at the largest step and less by powers of four after it."""
    biases = [bias(target, name, eta) for eta in ETAS]
    order = THEORY[target, name]
    if order is None:  # exact: what is left is rounding, amplified by 1 / (1 - |M|)
        assert max(map(abs, biases)) < 1e-12
        return
    found, error = slope(ETAS, biases)
    print(f"{target}, {name}: slope {found:.4f} +- {error:.4f}")
    assert error < 0.005
    assert abs(found - order) < 0.005
    if target == "gaussian":
        assert biases[-1] / ETAS[-1] == pytest.approx(LEADING[name], rel=0.01)


def test_the_committed_figures_are_these() -> None:
    rows = json.loads(RESULTS.read_text())["rows"]
    assert {(row["target"], row["integrator"]) for row in rows} == set(THEORY)
    for row in rows:
        assert row["order"] == THEORY[row["target"], row["integrator"]]
        again = bias(row["target"], row["integrator"], row["step_sizes"][0])
        assert row["bias"][0] == pytest.approx(again, rel=1e-6, abs=1e-12)
