"""Every kind of layer against the float64 per-sample loop, however it is run."""

from __future__ import annotations

import pytest
import torch

from oracle import assert_exact, chains_of, cross_entropy, per_sample_loop
from registry import CASES, batch, evaluate, make

BATCH = 4


#: One chain is evaluated without vmap, and several with it: each in one precision.
RUNS = [
    pytest.param(torch.float32, 1, id="float32-1"),
    pytest.param(torch.float64, 3, id="float64-3"),
    pytest.param(torch.float64, 1, id="float64-1", marks=pytest.mark.thorough),
    pytest.param(torch.float32, 3, id="float32-3", marks=pytest.mark.thorough),
]


@pytest.mark.parametrize(("dtype", "chains"), RUNS)
@pytest.mark.parametrize("name", CASES)
def test_statistics_equal_the_per_sample_loop(name: str, dtype: torch.dtype, chains: int) -> None:
    model, (x, y) = make(name, dtype), batch(name, BATCH, chains, dtype)
    params = chains_of(model, chains)
    evaluation, gradients = evaluate(name, params, x, y)
    for c in range(chains):
        own = {k: p[c] for k, p in params.items()}
        expected = per_sample_loop(model, cross_entropy, x[c], y[c], own)
        assert_exact(evaluation, c, expected.samples)
    (plan,) = gradients._plans.values()
    replayed = {p for n in plan.replayed for p in gradients.network.owned[n].values()}
    assert (replayed - plan.whole, set(plan.whole)) == (
        set(CASES[name].replayed), set(CASES[name].whole)
    )  # fmt: skip


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # raised inside inductor
@pytest.mark.parametrize(
    ("name", "chains", "dtype", "backend"),
    # One network of many kinds, because each takes a minute; results/compiled-layers.json has all,
    # and test_statistics.py traces one in every run of the tests.
    # All of compiling but the writing of C++, which dense networks see in test_fused_step.
    [
        pytest.param("compact", 3, torch.float32, "aot_eager", marks=pytest.mark.thorough),
        pytest.param("compact", 3, torch.float32, "inductor", marks=pytest.mark.thorough),
    ],
)
def test_compiled(name: str, chains: int, dtype: torch.dtype, backend: str) -> None:
    """fullgraph=True, with and without several chains."""
    model, (x, y) = make(name, dtype), batch(name, BATCH, chains, dtype)
    params = chains_of(model, chains)
    evaluation, _ = evaluate(name, params, x, y, backend=backend)
    for c in range(chains):
        own = {k: p[c] for k, p in params.items()}
        expected = per_sample_loop(model, cross_entropy, x[c], y[c], own)
        assert_exact(evaluation, c, expected.samples)
