"""The native engine takes the reference's steps: the same draws, agreement to rounding."""

from __future__ import annotations

import itertools
import logging
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from native_engines import METRICS, PRIORS, STEPS, assert_same, engines
from natural_langevin import Langevin, dynamics, likelihoods, preconditioners, priors, random
from natural_langevin.data import Subsets
from natural_langevin.data.streams import InMemory
from natural_langevin.dynamics import RatesTable
from natural_langevin.dynamics.dropout import PerceptronLoss
from natural_langevin.execution.engine import Engine
from natural_langevin.execution.kernels.native import planner
from natural_langevin.execution.kernels.native.build import library
from natural_langevin.execution.kernels.native.engine import NativeMLP
from natural_langevin.models import fan_in_init

pytestmark = pytest.mark.skipif(library(torch.float32) is None, reason="no C compiler")

LIKELIHOODS: dict[str, Any] = {
    "categorical": likelihoods.Categorical(),
    "bernoulli": likelihoods.Bernoulli(),
    "gaussian": likelihoods.Gaussian(sigma=0.7),
    "rmse": likelihoods.Gaussian(sigma="rmse"),
    "heteroscedastic": likelihoods.HeteroscedasticGaussian(),
    "student-t": likelihoods.StudentT(df=3.5, scale=0.6),
    "student-t, auto": likelihoods.StudentT(),
    "scaled": likelihoods.Scaled(likelihoods.Gaussian(0.7), (0.4, 6.0)),
    "scaled, rmse": likelihoods.Scaled(likelihoods.Gaussian("rmse"), (0.4, 6.0)),
    "scaled, student-t": likelihoods.Scaled(likelihoods.StudentT(), (0.4, 6.0)),
    "poisson": likelihoods.Poisson(),
    "negative-binomial": likelihoods.NegativeBinomial(),
    "dispersion": likelihoods.NegativeBinomial(0.3),
    "ordinal": likelihoods.Ordinal(4),
    "ordinal, gaps": likelihoods.Ordinal(3),
    "weighted": likelihoods.Categorical(class_weights=(0.5, 2.0), ignore_index=-1),
}
ACTIVATIONS: dict[str, Any] = {
    "relu": nn.ReLU,
    "in place": lambda: nn.ReLU(inplace=True),
    "leaky": lambda: nn.LeakyReLU(0.2),
    "tanh": nn.Tanh,
    "sigmoid": nn.Sigmoid,
    "gelu": nn.GELU,
    "gelu, tanh": lambda: nn.GELU(approximate="tanh"),
    "silu": nn.SiLU,
    "softplus": lambda: nn.Softplus(beta=2.0, threshold=3.0),
    "identity": nn.Identity,
}
#: Not drawn from in C: the general way serves.
NOT_DRAWN = ("poisson", "negative-binomial", "dispersion", "ordinal", "ordinal, gaps", "weighted")


def network(*widths: int, activation: Any = nn.Tanh, bias: bool = True) -> nn.Sequential:
    torch.manual_seed(1)
    layers: list[nn.Module] = []
    for fan_in, fan_out in itertools.pairwise(widths):
        layers += [nn.Linear(fan_in, fan_out, bias=bias), activation()]
    return nn.Sequential(*layers[:-1])


def data(likelihood: Any, inputs: int, outputs: int, count: int = 50) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(2)
    x = torch.randn(count, inputs, generator=g, dtype=torch.float64)
    if isinstance(likelihood, likelihoods.Categorical):
        lowest = 0 if likelihood.ignore_index is None else likelihood.ignore_index
        return x, torch.randint(lowest, outputs, (count,), generator=g)
    if isinstance(likelihood, likelihoods.Poisson):
        return x, torch.randint(0, 5, (count, outputs), generator=g)
    if isinstance(likelihood, likelihoods.Ordinal):
        return x, torch.randint(0, likelihood.levels, (count,), generator=g)
    if isinstance(likelihood, likelihoods.NegativeBinomial):  # beyond what is multiplied out
        outputs //= 2 if likelihood.dispersion == "outputs" else 1
        return x, torch.randint(0, 30, (count, outputs), generator=g)
    if isinstance(likelihood, likelihoods.HeteroscedasticGaussian):
        outputs //= 2
    if isinstance(likelihood, likelihoods.Bernoulli):
        return x, torch.randint(0, 2, (count, outputs), generator=g).double()
    return x, torch.randn(count, outputs, generator=g, dtype=torch.float64)


def cases() -> list[tuple[str, str, str, str, bool]]:
    """Every likelihood with every metric; priors, activations and biases take turns."""
    turns = zip(itertools.cycle(PRIORS), itertools.cycle(ACTIVATIONS), itertools.cycle([1, 1, 0]))
    return [
        (likelihood, metric, *next(turns))
        for likelihood in LIKELIHOODS
        for metric in METRICS
        if likelihood not in NOT_DRAWN or METRICS[metric].targets == "data"
    ]  # fmt: skip


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
    outputs = 1 if likelihood == "ordinal" else 2
    model = network(4, 6, 5, outputs, activation=ACTIVATIONS[activation], bias=bool(bias))
    reference, native, state = engines(
        model, LIKELIHOODS[likelihood], data(LIKELIHOODS[likelihood], 4, outputs),
        prior=PRIORS[prior], preconditioner=METRICS[metric], temperature=0.0,
    )  # fmt: skip
    normal = likelihood in ("gaussian", "rmse", "heteroscedastic", "scaled", "scaled, rmse")
    drawn = normal and METRICS[metric].targets == "model"
    assert_same(reference, native, state, rtol=1e-6 if drawn else 1e-10)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
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
    outputs = 1 if likelihood == "ordinal" else 2
    x, y = data(LIKELIHOODS[likelihood], 4, outputs)
    reference, native, state = engines(
        network(4, 7, outputs), LIKELIHOODS[likelihood], (x.float(), y), dtype=torch.float32,
        preconditioner=METRICS["quasi-diagonal"],
    )  # fmt: skip
    assert_same(reference, native, state, rtol=1e-5)


@pytest.mark.parametrize("chains", [1, 3])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("metric", ["rmsprop", "diagonal", "quasi-diagonal", "model", "unit"])
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


@pytest.mark.parametrize("integrator", ["euler", "baoab"])
@pytest.mark.parametrize("friction", [0.1, 1.0])
@pytest.mark.parametrize("metric", ["euclidean", "rmsprop", "quasi-diagonal"])
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


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_any_number_of_threads(threads: int) -> None:
    """Chains in turn, or one chain by a team: the network is large enough for one."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        reference, native, state = engines(
            network(60, 80, 2, activation=nn.ReLU), LIKELIHOODS["rmse"],
            data(LIKELIHOODS["rmse"], 60, 2, 120), batch_size=101, step_size=1e-3, chains=2,
            preconditioner=METRICS["quasi-diagonal"], temperature=0.0,
        )  # fmt: skip
        assert_same(reference, native, state, rtol=1e-9)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("kept", [True, False])
def test_chains_in_pieces(kept: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Five chains by two threads, and by one: the same bits, whoever takes which piece of a chain,
    along several epochs, and with no room to keep their permutations in."""
    if not kept:
        monkeypatch.setattr("natural_langevin.execution.kernels.native.engine.MOST_KEPT", 0)
    given, before, ends = data(LIKELIHOODS["gaussian"], 4, 2), torch.get_num_threads(), []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        try:
            model = network(4, 6, 2).double()
            sampler = Langevin(model, LIKELIHOODS["gaussian"], chains=5, step_size=1e-2)
            engine, state = sampler.prepare(given, steps=100, batch_size=16)
            for first, count in ((0, 1), (1, 59), (60, 40)):
                state, _ = engine.run(state, first, count)
        finally:
            torch.set_num_threads(before)
        assert engine.way == "native"
        ends.append(pytree.tree_leaves(state))
    assert float(state.params["0.weight"].std(0).min()) > 0
    assert all(torch.equal(a, b) for a, b in zip(*ends, strict=True))


@pytest.mark.self_checked
def test_a_disagreement_is_noticed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever a trace has overlooked: a step that is not the reference's is not used."""
    found = planner.NativeMLP._describe_layers

    def wrong(self: NativeMLP, width: int) -> None:
        found(self, width)
        self._layers[0].activation = 3  # tanh, where the network has a ReLU

    monkeypatch.setattr(planner.NativeMLP, "_describe_layers", wrong)
    _, native, state = engines(
        network(4, 6, 2, activation=nn.ReLU), LIKELIHOODS["gaussian"],
        data(LIKELIHOODS["gaussian"], 4, 2),
    )  # fmt: skip
    with caplog.at_level(logging.WARNING, logger="natural_langevin"):
        state, _ = native.run(state, 0, STEPS)
    assert "disagrees" in caplog.text
    assert native.way != "native"


@pytest.mark.self_checked
def test_inputs_far_from_zero_are_no_disagreement(caplog: pytest.LogCaptureFixture) -> None:
    """J_ii - J_0i^2 / J_00 is rounding alone in float32 there, for the reference too; float64
    tells that the formulas are the same."""
    _, native, state = engines(
        network(1, 16, 1, activation=nn.Identity), LIKELIHOODS["gaussian"],
        (3000 + torch.rand(50, 1), torch.rand(50, 1)), dtype=torch.float32,
    )  # fmt: skip
    executor = NativeMLP(native.dynamics, state, native.stream, native.rates, native.num_data)
    assert not planner.agrees(executor, state)
    with caplog.at_level(logging.WARNING, logger="natural_langevin"):
        native.run(state, 0, STEPS)
    assert native.way == "native"
    assert not caplog.text


def test_what_it_does_not_take_goes_the_general_way() -> None:
    full, other, state = engines(
        network(4, 3, 2), LIKELIHOODS["gaussian"], data(LIKELIHOODS["gaussian"], 4, 2),
        preconditioner=preconditioners.FullFisher(damping=0.1), temperature=0.0,
    )  # fmt: skip
    start = pytree.tree_map(torch.clone, state)
    wanted, _ = full.run(start, 0, STEPS)
    state, _ = other.run(state, 0, STEPS)
    assert other.way != "native"
    for k, p in wanted.params.items():
        torch.testing.assert_close(state.params[k], p)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("rates", [(0.0, 0.3, 0.6), None])
def test_dropped_units(rates: tuple[float, ...] | None, threads: int) -> None:
    """Of several hidden layers, wide enough that threads share a step; each network its rate."""
    x, y = data(LIKELIHOODS["categorical"], 60, 3)
    chain = torch.arange(3)
    origin = random.origin(4, random.NOISE, chain)
    rate = torch.tensor(rates or (0.0,) * 3, dtype=torch.float64)
    descent = dynamics.Descent(PerceptronLoss(rate, origin if rates else None), momentum=0.5)
    own = network(60, 50, 21, 3, activation=nn.ReLU).double()
    params = {k: p.detach() for k, p in own.named_parameters()}
    made = []
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for mode in ("eager", "auto"):
            stream = InMemory(x, y, batch_size=16, chain=chain, seed=0, device=x.device)
            table = RatesTable.build(0.1, stop=STEPS, chains=3, dtype=torch.float64)
            made.append(Engine(descent, stream, table, len(x), mode=mode))
        start = descent.init(fan_in_init(params, chain=chain, seed=0))
        assert_same(made[0], made[1], start, rtol=1e-9)
    finally:
        torch.set_num_threads(before)


def test_another_loss_is_for_the_general_step() -> None:
    class Other(PerceptronLoss):
        """Says the same today; what it says tomorrow nobody knows."""

    assert dynamics.Descent(PerceptronLoss(torch.zeros(1))).kernels == {"mlp"}
    assert dynamics.Descent(Other(torch.zeros(1))).kernels == frozenset()


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


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.self_checked
def test_hardly_any_dispersion_is_no_disagreement(dtype: torch.dtype) -> None:
    """Large counts of 1/a = 1e13: neither side may subtract numbers of that size."""
    model = network(4, 6, 2).to(dtype)
    with torch.no_grad():
        model[-1].bias.copy_(torch.tensor([2.0, -30.0]))
    x, y = data(LIKELIHOODS["negative-binomial"], 4, 2)
    reference, native, state = engines(
        model, LIKELIHOODS["negative-binomial"], (x.to(dtype), y), dtype=dtype, step_size=1e-3,
        preconditioner=METRICS["quasi-diagonal"], temperature=0.0,
    )  # fmt: skip
    assert_same(reference, native, state, rtol=1e-4 if dtype == torch.float32 else 1e-9)
