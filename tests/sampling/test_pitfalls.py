"""What would sample something else, or not fit into memory, is said before the first step."""

import math

import pytest
import torch
from torch import nn

import small_run
from natural_langevin import (
    DivergenceError,
    Langevin,
    dynamics,
    likelihoods,
    models,
    preconditioners,
)
from natural_langevin._internal import capacity
from natural_langevin.run.problem import work

pytestmark = pytest.mark.self_checked


class Cut(nn.Module):
    """Two layers; ``where`` says what is cut off from the parameters."""

    def __init__(self, where: str) -> None:
        super().__init__()
        self.first, self.second, self.where = nn.Linear(3, 4), nn.Linear(4, 2), where

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.tanh(self.first(x))
        if self.where == "no_grad":
            with torch.no_grad():
                return self.second(h)
        out = self.second(h.detach() if self.where == "hidden" else h)
        return out.detach() if self.where == "output" else out


@pytest.mark.parametrize("where", ["output", "no_grad"])
def test_a_detached_output_is_refused(where):
    with pytest.raises(ValueError, match="leave out detach"):
        small_run.sample(sampler={"model": Cut(where)})
    sampler = small_run.sampler(model=Cut(where), num_data=60)
    with pytest.raises(ValueError, match="only the prior would be sampled"):
        sampler.step(sampler.init(), small_run.data())


def test_parameters_that_reach_no_output_are_named(caplog):
    small_run.sample(sampler={"model": Cut("hidden")})
    assert "does not depend on 'first.weight', 'first.bias': they are sampled" in caplog.text
    caplog.clear()
    small_run.sample(sampler={"model": Cut("nothing")})
    assert "does not depend" not in caplog.text


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_a_run_without_gradients_around_it_is_the_same_run(mode):
    with mode():
        found = small_run.sample()
    small_run.assert_same(small_run.sample(), found)


def test_a_run_inside_autocast_is_refused_with_the_remedy():
    sampler = small_run.sampler(num_data=60)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        with pytest.raises(ValueError, match=r"autocast=torch.bfloat16"):
            sampler.sample(small_run.data(), 5, batch_size=20, progress=False)
        with pytest.raises(ValueError, match=r"inside torch.autocast"):
            sampler.step(sampler.init(), small_run.data())
    assert sampler.sample(small_run.data(), 5, batch_size=20, progress=False).draws == 5


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_values_whose_squares_are_infinite_are_refused(dtype):
    x, y = small_run.data()
    x, far = x.to(dtype), 1e200 if dtype == torch.float64 else 1e30
    model = small_run.network().to(dtype)
    with pytest.raises(ValueError, match=r"x holds values up to .* standardise it"):
        small_run.sample(data=(x * far, y), sampler={"model": model})
    sampler = Langevin(
        nn.Linear(3, 1).to(dtype), likelihoods.Gaussian(sigma=1.0), step_size=1e-3, chains=2
    )
    with pytest.raises(ValueError, match=r"y holds values up to"):
        sampler.sample((x, far * x[:, :1]), 5, batch_size=20, progress=False)


def test_a_network_in_half_precision_is_refused():
    with pytest.raises(TypeError, match=r"float16.*Use model.float"):
        small_run.sampler(model=small_run.network().half())


METRICS = ("Euclidean", "RMSProp", "DiagonalFisher", "QuasiDiagonalFisher", "KroneckerFisher")


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("moves", ["Overdamped", "Underdamped"])
def test_the_state_is_counted_before_it_is_made(metric, moves):
    sampler = small_run.sampler(
        chains=3, preconditioner=getattr(preconditioners, metric)(),
        dynamics=getattr(dynamics, moves)(),
    )  # fmt: skip
    params = {k: p[0] for k, p in sampler.init().params.items()}
    leaves = torch.utils._pytree.tree_leaves(sampler.init())
    made = sum(t.nbytes for t in leaves if isinstance(t, torch.Tensor))
    assert work.state_bytes(sampler.frame, params, 3) == made


def test_more_chains_than_memory_are_refused_before_anything_is_made(monkeypatch):
    model = nn.Sequential(nn.Linear(2000, 2000), nn.Tanh(), nn.Linear(2000, 2))
    monkeypatch.setattr(capacity, "in_memory", lambda device=None: 16 << 30)
    made = []
    monkeypatch.setattr(Langevin, "init", lambda self: made.append(self))
    with pytest.raises(ValueError, match=r"64 chains of 4,\d+,\d+ parameters take about 2\d\.\d"):
        Langevin(model, likelihoods.Categorical(), step_size=1e-3, chains=64)
    assert not made
    Langevin(model, likelihoods.Categorical(), step_size=1e-3, chains=8)
    assert made


def test_a_container_has_less_than_its_machine(monkeypatch, tmp_path):
    whole = capacity.in_memory()
    assert whole > 1 << 20
    for text, expected in ((str(1 << 20), 1 << 20), ("max\n", whole), ("", whole)):
        (tmp_path / "memory.max").write_text(text)
        monkeypatch.setattr(capacity, "_LIMITS", (str(tmp_path / "memory.max"),))
        assert capacity.in_memory() == expected


def test_a_state_that_fits_however_large_is_not_laid_out(monkeypatch):
    """What lays it out takes up to two seconds to load: a dense metric needs it, no other does."""

    def refuse(*_):
        raise AssertionError("laid out")

    monkeypatch.setattr(work, "state_bytes", refuse)
    Langevin(models.mlp(), likelihoods.Categorical(), chains=2)
    dense = preconditioners.FullFisher()
    with pytest.raises(AssertionError, match="laid out"):
        Langevin(models.mlp(), likelihoods.Categorical(), preconditioner=dense, chains=2)


class Undefined(nn.Linear):
    """Gives NaN, whatever its weights."""

    def forward(self, x):
        return super().forward(x) * math.nan


def test_a_network_that_gives_nan_from_the_start_is_not_blamed_on_the_step_size(caplog):
    x, y = torch.zeros(20, 3), torch.arange(20) % 3
    sampler = Langevin(Undefined(3, 3), likelihoods.Categorical(), step_size=1e-3, chains=2)
    with pytest.raises(DivergenceError, match="before any step") as caught:
        sampler.sample((x, y), steps=10, batch_size=10, progress=False)
    assert "step size" not in str(caught.value) + caplog.text
