"""Outputs of many networks in C are the networks' own, and others go the general way."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from natural_langevin import Langevin, Posterior, likelihoods
from natural_langevin._internal.chains import Params
from natural_langevin.execution.kernels.native import build
from natural_langevin.execution.kernels.native.build import library
from natural_langevin.execution.kernels.native.forward import NativeOutputs

pytestmark = pytest.mark.skipif(library(torch.float32) is None, reason="no C compiler")


def networks_of(model: nn.Module, count: int) -> Params:
    """Random weights of its trainable parameters, (network, *shape)."""
    generator = torch.Generator().manual_seed(1)
    return {
        name: torch.randn(count, *p.shape, generator=generator).to(p) / max(1, p[0].numel()) ** 0.5
        for name, p in model.named_parameters()
        if p.requires_grad
    }


def caller(model: nn.Module) -> Callable[[Params, Tensor], Any]:
    return lambda params, x: functional_call(model, params, (x,))


def expected(model: nn.Module, params: Params, x: Tensor, *, own: bool = False) -> Tensor:
    call = caller(model)
    with torch.no_grad():
        return vmap(call, in_dims=(0, 0 if own else None))(params, x)


def bounds(dtype: torch.dtype) -> dict[str, float]:
    return {"rtol": 0.0, "atol": 200 * torch.finfo(dtype).eps}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "activation",
    [nn.ReLU(), nn.LeakyReLU(0.2), nn.Tanh(), nn.Sigmoid(), nn.GELU(), nn.GELU("tanh"), nn.SiLU(),
     nn.Softplus(2.0), nn.ELU(0.7), nn.CELU(1.5), nn.SELU(), nn.Mish(), nn.ReLU6(),
     nn.Hardtanh(-0.4, 0.8), nn.Identity()],
    ids=lambda a: f"{type(a).__name__}{getattr(a, 'approximate', '')}",
)  # fmt: skip
def test_every_activation(activation: nn.Module, dtype: torch.dtype) -> None:
    library(dtype)  # predictions build none
    model = nn.Sequential(
        nn.Linear(5, 37), activation, nn.Linear(37, 9, bias=False), activation, nn.Linear(9, 3)
    ).to(dtype)
    params, native = networks_of(model, 4), NativeOutputs(model)
    for rows in (1, 7, 83, 201):
        x = torch.randn(rows, 5, dtype=dtype)
        found = native(caller(model), params, x)
        assert found is not None
        torch.testing.assert_close(found, expected(model, params, x), **bounds(dtype))
    # By a loss that is no number a diverged chain is known.
    params["0.weight"][1] = torch.nan
    found = native(caller(model), params, x)
    assert found is not None
    assert found.isnan().flatten(1).all(1).tolist() == [False, True, False, False]


def test_inputs_of_their_own() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2))
    params, x = networks_of(model, 3), torch.randn(3, 90, 2, 3)
    found = NativeOutputs(model)(caller(model), params, x, own=True)
    assert found is not None
    wanted = expected(model, params, x, own=True)
    torch.testing.assert_close(found, wanted, **bounds(torch.float32))


def test_frozen_layers_and_outputs_without_an_axis() -> None:
    class Squeezed(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x).squeeze(-1)

    model = Squeezed(nn.Linear(300, 40), nn.ReLU(), nn.Linear(40, 1))
    model[0].requires_grad_(requires_grad=False)
    params, x = networks_of(model, 2), torch.randn(30, 300)
    found = NativeOutputs(model)(caller(model), params, x)
    assert found is not None
    assert found.shape == (2, 30)
    torch.testing.assert_close(found, expected(model, params, x), **bounds(torch.float32))


class Skipping(nn.Module):
    """No chain: its input is added to what a layer makes of it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.layer(x)


def test_what_is_no_chain_or_wide_goes_the_general_way() -> None:
    model = Skipping()
    params, x = networks_of(model, 2), torch.randn(9, 4)
    assert NativeOutputs(model)(caller(model), params, x) is None
    wide = nn.Sequential(nn.Linear(300, 300), nn.ReLU(), nn.Linear(300, 1))
    params, x = networks_of(wide, 2), torch.randn(9, 300)
    assert NativeOutputs(wide)(caller(wide), params, x) is None


def test_what_is_differentiated_or_vectorised_goes_the_general_way() -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))
    params, native = networks_of(model, 2), NativeOutputs(model)
    x = torch.randn(9, 4)
    assert native(caller(model), params, x.clone().requires_grad_()) is None
    seen = []
    vmap(lambda part: seen.append(native(caller(model), params, part)) or part)(x[None])
    assert seen == [None]
    assert native(caller(model), params, x.double()) is None
    assert native(caller(model), params, x) is not None


def test_a_disagreement_is_noticed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))
    params, native, x = networks_of(model, 2), NativeOutputs(model), torch.randn(9, 4)
    right = NativeOutputs._computed
    monkeypatch.setattr(NativeOutputs, "_computed", lambda self, *args: 1.001 * right(self, *args))
    assert native(caller(model), params, x) is None
    assert "disagree" in caplog.text


def test_nothing_is_built_for_predictions(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("NATURAL_LANGEVIN_CACHE", str(tmp_path))
    monkeypatch.setattr(build, "_prebuilt", lambda dtype: None)
    monkeypatch.setattr(build, "_KNOWN", {})
    model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))
    assert NativeOutputs(model)(caller(model), networks_of(model, 2), torch.randn(9, 4)) is None
    assert not list(tmp_path.iterdir())


@pytest.fixture(scope="module")
def posterior() -> Posterior:
    torch.manual_seed(0)
    x = torch.rand(60, 2)
    model = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 3))
    sampler = Langevin(model, likelihoods.Categorical(), step_size=1e-3, chains=2)
    return sampler.sample(
        (x, torch.arange(60) % 3), 40, batch_size=20, burn_in=10, thin=2, progress=False
    )


def test_a_posterior_predicts_the_same_either_way(
    posterior: Posterior, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y = torch.rand(50, 2), torch.arange(50) % 3
    found = posterior.predict(x), posterior.log_likelihood(x, y)
    assert posterior.native._known != {}
    monkeypatch.setattr(NativeOutputs, "__call__", lambda self, *args, **options: None)
    general = posterior.predict(x), posterior.log_likelihood(x, y)
    torch.testing.assert_close(found, general, rtol=1e-4, atol=1e-5)
    assert found[1].shape == (2, 15, 50)
