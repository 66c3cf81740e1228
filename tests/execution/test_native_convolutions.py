"""Convolutions and pools in the native engine: the reference's steps, and the networks' outputs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from native_engines import METRICS, PRIORS, assert_same, engines
from natural_langevin import likelihoods, preconditioners
from natural_langevin.dynamics import State
from natural_langevin.execution.engine import Engine
from natural_langevin.execution.kernels.native import engine as native_engine
from natural_langevin.execution.kernels.native import planner
from natural_langevin.execution.kernels.native.build import library
from natural_langevin.execution.kernels.native.forward import NativeOutputs

pytestmark = pytest.mark.skipif(library(torch.float32) is None, reason="no C compiler")


class Written(nn.Module):
    """By hand: a reshape, functions in place of modules, a mean over pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 5, 3, bias=False), nn.Conv2d(5, 3, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(self.first(x.view(-1, 1, 7, 6)), 2)
        return self.second(F.gelu(x)).mean((2, 3))


def data(count: int = 50) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(2)
    x = torch.randn(count, 42, generator=g, dtype=torch.float64)
    return x, torch.randint(0, 3, (count,), generator=g)


def way_of(made: tuple[Engine, Engine, State]) -> str:
    """Which way the second engine goes, after a step."""
    made[1].run(made[2], 0, 1)
    return made[1].way


def with_weights(*layers: nn.Module) -> nn.Sequential:
    torch.manual_seed(3)
    for layer in layers:
        for p in layer.parameters():
            nn.init.normal_(p, std=0.4)
    return nn.Sequential(*layers)


#: Networks of 42 numbers, seen as one or two channels of an image or a series.
NETWORKS: dict[str, Any] = {
    "usual": lambda: with_weights(
        nn.Unflatten(1, (1, 7, 6)), nn.Conv2d(1, 6, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(24, 3),
    ),
    "two, padded": lambda: with_weights(
        nn.Unflatten(1, (1, 7, 6)), nn.Conv2d(1, 4, 3, padding=1), nn.Tanh(),
        nn.Conv2d(4, 5, 3, padding="same"), nn.SiLU(), nn.AvgPool2d(2), nn.Flatten(),
        nn.Linear(45, 3),
    ),
    "strides": lambda: with_weights(
        nn.Unflatten(1, (2, 7, 3)), nn.Conv2d(2, 3, (3, 2), stride=(2, 1), padding=(2, 0)),
        nn.LeakyReLU(0.1), nn.Conv2d(3, 9, 2, dilation=(2, 1), bias=False), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(9, 3),
    ),
    "series": lambda: with_weights(
        nn.Unflatten(1, (2, 21)), nn.Conv1d(2, 4, 5), nn.MaxPool1d(3, stride=2, padding=1),
        nn.ReLU(), nn.Conv1d(4, 3, 9), nn.Flatten(), nn.Softplus(),
    ),
    "volume": lambda: with_weights(
        nn.Unflatten(1, (1, 3, 7, 2)), nn.Conv3d(1, 3, (2, 3, 2)), nn.Sigmoid(),
        nn.AdaptiveMaxPool3d((1, 5, 1)), nn.Flatten(), nn.Linear(15, 3),
    ),
    "pixels pooled first": lambda: with_weights(
        nn.Unflatten(1, (1, 7, 6)), nn.AvgPool2d(2, padding=1), nn.Conv2d(1, 5, 2), nn.GELU(),
        nn.Flatten(), nn.Linear(45, 3),
    ),
    "written": Written,
}  # fmt: skip
BY_WEIGHT = [name for name in METRICS if "unit" not in name]


def steps() -> list[Any]:
    """A network's shapes end where its sums begin, which is where a metric begins: every metric
    with the usual network, every network with a third of the metrics; the rest is ``thorough``."""
    return [
        pytest.param(n, m, marks=() if not i or (i + j) % 3 == 0 else pytest.mark.thorough)
        for i, n in enumerate(NETWORKS)
        for j, m in enumerate(BY_WEIGHT)
    ]


@pytest.mark.parametrize(("network", "metric"), steps())
def test_steps_are_those_of_the_reference(network: str, metric: str) -> None:
    likelihood = likelihoods.Categorical()
    made = engines(
        NETWORKS[network](), likelihood, data(),
        preconditioner=METRICS[metric],
        prior=list(PRIORS.values())[BY_WEIGHT.index(metric) % len(PRIORS)],
    )  # fmt: skip
    assert_same(*made, rtol=2e-6)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("chains", [1, 4])
def test_steps_in_float32_by_several_threads(chains: int, threads: int) -> None:
    likelihood = likelihoods.Gaussian(sigma="rmse")
    x = data(200)[0]
    y = torch.randn(200, 3, generator=torch.Generator().manual_seed(4))
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        made = engines(
            NETWORKS["usual"](), likelihood, (x.float(), y), dtype=torch.float32,
            batch_size=90, chains=chains,
        )  # fmt: skip
        assert_same(*made, rtol=2e-4)
    finally:
        torch.set_num_threads(before)


def test_a_frozen_convolution_stays_and_is_read() -> None:
    model = NETWORKS["usual"]()
    model[1].weight.requires_grad_(False)
    likelihood = likelihoods.Categorical()
    made = engines(model, likelihood, data())
    assert "1.weight" not in made[2].params
    assert_same(*made, rtol=2e-6)


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2d(2, 4, 3, groups=2),
        nn.Conv2d(2, 4, 3, padding=1, padding_mode="circular"),
        nn.ConvTranspose2d(2, 4, 2),
        nn.Sequential(nn.Conv2d(2, 4, 3), nn.MaxPool2d(2, ceil_mode=True)),
        nn.Sequential(nn.Conv2d(2, 4, 3), nn.AvgPool2d(2, padding=1, count_include_pad=False)),
        nn.Sequential(nn.Conv2d(2, 4, 2), nn.AdaptiveAvgPool2d((4, 1))),
    ],
)
def test_other_forms_go_the_general_way(layer: nn.Module) -> None:
    torch.manual_seed(0)
    front = nn.Sequential(nn.Unflatten(1, (2, 7, 3)), layer, nn.Flatten())
    model = nn.Sequential(front, nn.Linear(front(torch.zeros(1, 42)).numel(), 3))
    likelihood = likelihoods.Categorical()
    assert way_of(engines(model, likelihood, data())) == "eager"


@pytest.mark.parametrize(
    "metric",
    [preconditioners.UnitFisher(), preconditioners.QuasiDiagonalFisher(sharing="expand")],
)
def test_other_metrics_go_the_general_way_without_a_warning(
    metric: Any, caplog: pytest.LogCaptureFixture
) -> None:
    made = engines(NETWORKS["usual"](), likelihoods.Categorical(), data(), preconditioner=metric)
    assert way_of(made) == "eager"
    assert not caplog.records


def test_much_memory_is_left_to_the_general_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native_engine, "MOST_MEMORY", 500_000)
    given = (NETWORKS["usual"](), likelihoods.Categorical(), data())
    assert way_of(engines(*given, batch_size=8)) == "native"
    assert way_of(engines(*given, batch_size=50)) == "eager"


@pytest.mark.self_checked
def test_a_table_that_is_wrong_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The proof on the first batch: a step with one entry of the table changed is not taken."""
    likelihood = likelihoods.Categorical()
    right = planner.NativeMLP.__init__

    def spoilt(self: Any, *args: Any, **kwargs: Any) -> None:
        right(self, *args, **kwargs)
        self.specs[0].places.table[0, 0] += 1

    monkeypatch.setattr(planner.NativeMLP, "__init__", spoilt)
    made = engines(NETWORKS["usual"](), likelihood, data())
    assert way_of(made) == "eager"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("network", NETWORKS)
def test_outputs_are_the_networks_own(network: str, dtype: torch.dtype) -> None:
    model = NETWORKS[network]().to(dtype)
    assert library(dtype) is not None  # built before it is asked for
    params = {k: torch.stack([p, -0.5 * p]).detach() for k, p in model.named_parameters()}
    x = torch.randn(150, 42, dtype=dtype)

    def call(named: Any, batch: Tensor) -> Tensor:
        return torch.func.functional_call(model, named, (batch,))

    found = NativeOutputs(model)(call, params, x)
    assert found is not None
    for k in range(2):
        wanted = call({name: p[k] for name, p in params.items()}, x)
        torch.testing.assert_close(found[k], wanted, rtol=1e-4, atol=1e-5)
