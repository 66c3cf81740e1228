"""The native engine takes the reference's steps: the same draws, agreement to rounding."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import nn

from native_engines import (
    ACTIVATIONS,
    LIKELIHOODS,
    METRICS,
    PRIORS,
    STEPS,
    assert_same,
    data,
    engines,
    network,
)
from natural_langevin import dynamics, priors, random
from natural_langevin.data import Subsets
from natural_langevin.execution.kernels.native.build import library
from pairwise import covering

pytestmark = [
    pytest.mark.skipif(library(torch.float32) is None, reason="no C compiler"),
    # The reference's own way: torch differentiates Mish chain by chain, and says so.
    pytest.mark.filterwarnings("ignore:There is a performance drop"),
]

#: Not drawn from in C: the general way serves.
NOT_DRAWN = (
    "poisson", "negative-binomial", "dispersion", "hurdle", "ordinal", "ordinal, gaps", "weighted",
)  # fmt: skip


def cases() -> list[Any]:
    """Every likelihood with every metric; priors, activations and biases take turns. What meets in
    C are a likelihood and where labels come from, then sums and a metric: of the product a third is
    run, in which every likelihood has labels of both kinds, and the rest is ``thorough``."""
    turns = zip(itertools.cycle(PRIORS), itertools.cycle(ACTIVATIONS), itertools.cycle([1, 1, 0]))
    found, met = [], set()
    for k, likelihood in enumerate(LIKELIHOODS):
        for m, (metric, of) in enumerate(METRICS.items()):
            if likelihood in NOT_DRAWN and of.targets == "model":
                continue
            one, kind = (likelihood, metric, *next(turns)), (likelihood, of.targets)
            usual = (k + m) % 3 == 0 or kind not in met
            met.add(kind)
            found.append(pytest.param(*one, marks=() if usual else pytest.mark.thorough))
    return found


@pytest.mark.parametrize(("likelihood", "metric", "prior", "activation", "bias"), cases())
def test_without_noise(
    likelihood: str, metric: str, prior: str, activation: str, bias: bool
) -> None:
    """T = 0 in double precision: the same numbers up to the order of sums. Labels drawn from a
    normal law are single precision, as all normals are, and enter the metric."""
    if not bias and prior == "per tensor":
        prior = "gaussian"
    if (metric, prior) == ("prior", "flat"):  # no damping: the reference itself turns 1e-15 of its
        prior = "gaussian"  # start into 6e-10
    outputs = {"ordinal": 1, "hurdle": 3}.get(likelihood, 2)
    model = network(4, 6, 5, outputs, activation=ACTIVATIONS[activation], bias=bool(bias))
    reference, native, state = engines(
        model, LIKELIHOODS[likelihood], data(LIKELIHOODS[likelihood], 4, outputs),
        prior=PRIORS[prior], preconditioner=METRICS[metric], temperature=0.0,
    )  # fmt: skip
    normal = likelihood in ("gaussian", "rmse", "heteroscedastic", "scaled", "scaled, rmse")
    drawn = normal and METRICS[metric].targets == "model"
    assert_same(reference, native, state, rtol=1e-6 if drawn else 1e-10)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize(  # in float64 every activation has its turn above
    "dtype", [pytest.param(torch.float64, marks=pytest.mark.thorough), torch.float32]
)
def test_with_noise(dtype: torch.dtype, activation: str) -> None:
    """Noise is single precision in any case, and one or two units in the last place differ."""
    model = network(4, 7, 3, activation=ACTIVATIONS[activation])
    x, y = data(LIKELIHOODS["categorical"], 4, 3)
    reference, native, state = engines(
        model, LIKELIHOODS["categorical"], (x.to(dtype), y), dtype=dtype,
        preconditioner=METRICS["quasi-diagonal"],
    )  # fmt: skip
    assert_same(reference, native, state, rtol=1e-5)


@pytest.mark.parametrize("likelihood", LIKELIHOODS)
def test_likelihoods_in_single_precision(likelihood: str) -> None:
    outputs = {"ordinal": 1, "hurdle": 3}.get(likelihood, 2)
    x, y = data(LIKELIHOODS[likelihood], 4, outputs)
    reference, native, state = engines(
        network(4, 7, outputs), LIKELIHOODS[likelihood], (x.float(), y), dtype=torch.float32,
        preconditioner=METRICS["quasi-diagonal"],
    )  # fmt: skip
    assert_same(reference, native, state, rtol=1e-5)


@pytest.mark.parametrize(
    ("metric", "bias", "chains"),
    covering(["rmsprop", "diagonal", "quasi-diagonal", "model", "unit"], [True, False], [1, 3]),
)
def test_wide_layers(metric: str, bias: bool, chains: int) -> None:
    """Layers whose moments are formed sample by sample, of widths that fit no vector; fewer units
    where each has a matrix of its own."""
    widths = (70, 37, 53, 3) if metric == "unit" else (70, 131, 57, 3)
    model = network(*widths, activation=nn.ReLU, bias=bias)
    reference, native, state = engines(
        model, LIKELIHOODS["categorical"], data(LIKELIHOODS["categorical"], 70, 3, 120),
        preconditioner=METRICS[metric], chains=chains, temperature=0.0, step_size=1e-3,
        batch_size=37,
    )  # fmt: skip
    assert_same(reference, native, state, rtol=1e-9)


def test_values_per_chain() -> None:
    """Step size, temperature, prior and rows of every chain its own."""
    x, y = data(LIKELIHOODS["gaussian"], 4, 1, 60)
    rows = torch.stack([torch.randperm(60, generator=torch.Generator().manual_seed(k))[:40]
                        for k in range(3)])  # fmt: skip
    reference, native, state = engines(
        network(4, 6, 1), LIKELIHOODS["gaussian"], Subsets(x, y, rows),
        preconditioner=METRICS["prior"],
        prior=priors.Gaussian(torch.tensor([0.1, 0.5, 2.0]), mean=torch.tensor([0.0, 0.1, 1.0])),
        step_size=torch.tensor([1e-3, 1e-2, 3e-2]), temperature=torch.tensor([0.0, 0.5, 1.0]),
    )  # fmt: skip
    assert_same(reference, native, state, rtol=1e-5)


@pytest.mark.parametrize(
    ("metric", "friction", "integrator"),
    covering(["euclidean", "rmsprop", "quasi-diagonal"], [0.1, 1.0], ["euler", "baoab"]),
)
def test_underdamped(metric: str, friction: float, integrator: str) -> None:
    reference, native, state = engines(
        network(4, 6, 2), LIKELIHOODS["gaussian"], data(LIKELIHOODS["gaussian"], 4, 2),
        preconditioner=METRICS[metric],
        dynamics=dynamics.Underdamped(friction=friction, integrator=integrator),
    )  # fmt: skip
    assert_same(reference, native, state, rtol=1e-5)


def test_no_friction_left_is_overdamped_bit_for_bit() -> None:
    ended = []
    for one in (dynamics.Overdamped(), dynamics.Underdamped(friction=1.0)):
        _, native, state = engines(
            network(4, 6, 2), LIKELIHOODS["gaussian"], data(LIKELIHOODS["gaussian"], 4, 2),
            dynamics=one,
        )  # fmt: skip
        ended.append(native.run(state, 0, STEPS)[0].params)
        assert native.way == "native"
    assert all(torch.equal(p, ended[1][k]) for k, p in ended[0].items())


@pytest.mark.parametrize("batch_size", [1, 25, 50])
def test_epochs(batch_size: int) -> None:
    """From one sample to all of them, over several epochs."""
    reference, native, state = engines(
        network(4, 6, 1), LIKELIHOODS["rmse"], data(LIKELIHOODS["rmse"], 4, 1),
        preconditioner=METRICS["diagonal"], temperature=0.0, batch_size=batch_size, step_size=1e-3,
    )  # fmt: skip
    assert_same(reference, native, state, rtol=1e-10)


def test_permutation_of_many_rows() -> None:
    """Above 4096 rows the sort takes other digits."""
    reference, native, state = engines(
        network(2, 3, 1), LIKELIHOODS["gaussian"], data(LIKELIHOODS["gaussian"], 2, 1, 5000),
        batch_size=1250, temperature=0.0,
    )  # fmt: skip
    assert_same(reference, native, state, rtol=1e-10)


def test_stopped_chains_stand_still() -> None:
    """A chain that diverges stops at the same step and place; the others go on."""
    reference, native, state = engines(
        network(4, 6, 1), LIKELIHOODS["gaussian"], data(LIKELIHOODS["gaussian"], 4, 1),
        preconditioner=METRICS["euclidean"], temperature=0.0,
        step_size=torch.tensor([1e-2, 1e155, 1e-2], dtype=torch.float64),
    )  # fmt: skip
    state = assert_same(reference, native, state, rtol=1e-9)
    assert state.diverged.tolist()[::2] == [-1, -1]
    assert 0 < int(state.diverged[1]) < STEPS


def test_frozen_parameters() -> None:
    """Frozen tensors take part in the network, and have no place in state or noise."""
    model = network(4, 6, 5, 2)
    for name in ("0.weight", "0.bias", "2.bias"):
        model.get_parameter(name).requires_grad_(False)
    reference, native, state = engines(
        model, LIKELIHOODS["gaussian"], data(LIKELIHOODS["gaussian"], 4, 2),
        preconditioner=METRICS["quasi-diagonal"],
    )  # fmt: skip
    assert_same(reference, native, state, rtol=1e-5)


@pytest.mark.parametrize("keeps", [True, False])
def test_running_mean(keeps: bool) -> None:
    reference, native, state = engines(
        network(4, 6, 2), LIKELIHOODS["gaussian"], data(LIKELIHOODS["gaussian"], 4, 2),
        mean_rate=0.3 if keeps else None,
    )  # fmt: skip
    assert bool(state.mean) == keeps
    assert_same(reference, native, state, rtol=1e-5)


def test_a_loader_of_batches() -> None:
    x, y = data(LIKELIHOODS["gaussian"], 4, 2)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=20)
    reference, native, state = engines(network(4, 6, 2), LIKELIHOODS["gaussian"], loader)
    assert_same(reference, native, state, rtol=1e-5)


def test_the_same_draws() -> None:
    """The noise of ``random``, from the same addresses."""
    origin = random.origin(3, random.NOISE, torch.tensor([7]))
    wanted = random.normal(random.stream(origin, 11), 2000, start=64)[0]
    room, out = torch.empty(3000), torch.empty(2000)
    found = library(torch.float32)
    assert found is not None
    import ctypes

    draw = found.draw_normals
    draw.argtypes = [ctypes.c_int64] * 4 + [ctypes.c_void_p] * 2
    draw(int(origin[0]), 11, 64, 2000, room.data_ptr(), out.data_ptr())
    torch.testing.assert_close(out, wanted, rtol=1e-6, atol=3e-6)
    assert float(out.std()) > 0.9
