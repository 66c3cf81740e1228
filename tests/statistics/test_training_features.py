"""Accumulation, reduced precision and clipping: the same numbers by other means, or said so."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from natural_langevin import Langevin, likelihoods, preconditioners
from oracle import chains_of, cross_entropy, per_sample_loop, spread
from registry import batch, make

X, Y = torch.linspace(-1, 1, 60).reshape(20, 3), torch.arange(20) % 3


def evaluate(model: nn.Module, x: Tensor, y: Tensor, likelihood=None, targets="data", **options):
    sampler = Langevin(
        model, likelihood or likelihoods.Categorical(), chains=len(x),
        preconditioner=preconditioners.QuasiDiagonalFisher(targets=targets), **options,
    )  # fmt: skip
    gradients, state = sampler.frame.gradients, sampler.init()
    params = chains_of(model, len(x))
    gradients.prepare(params, x[0])
    key = torch.arange(2 * len(x), dtype=torch.int32).reshape(-1, 2)
    step = torch.ones((), dtype=torch.int64)
    return params, gradients(params, state.likelihood, (x, y), chain_axis=True, key=key, step=step)


@pytest.mark.parametrize("microbatch", [1, 3, 7, 9])
@pytest.mark.parametrize("targets", ["data", "model"])
def test_pieces_give_what_the_whole_batch_gives(microbatch: int, targets: str) -> None:
    """Seven samples in ones, in 3 + 3 + 1, and at once; labels drawn from the model included."""
    model, (x, y) = make("compact", torch.float64), batch("compact", 7, 2, torch.float64)
    _, expected = evaluate(model, x, y, targets=targets)
    _, found = evaluate(model, x, y, targets=targets, microbatch=microbatch)
    torch.testing.assert_close(found.loss, expected.loss)
    torch.testing.assert_close(found.gradient, expected.gradient)
    torch.testing.assert_close(found.statistics.second, expected.statistics.second)
    torch.testing.assert_close(found.statistics.cross, expected.statistics.cross)


def test_pieces_and_a_likelihood_that_learns() -> None:
    """The noise level is that of the whole batch, before any piece uses it."""
    model = nn.Linear(3, 2).double()
    x, y = torch.randn(2, 7, 3, dtype=torch.float64), torch.randn(2, 7, 2, dtype=torch.float64)
    likelihood = likelihoods.Gaussian(sigma="rmse")
    _, expected = evaluate(model, x, y, likelihood)
    _, found = evaluate(model, x, y, likelihood, microbatch=3)
    torch.testing.assert_close(found.likelihood, expected.likelihood)
    torch.testing.assert_close(found.gradient, expected.gradient)
    torch.testing.assert_close(found.statistics.second, expected.statistics.second)


def test_a_whole_run_in_pieces() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3)).double()
    runs = [
        Langevin(
            model, likelihoods.Categorical(), chains=2, step_size=1e-4, microbatch=m, compile=False
        ).sample((X.double(), Y), 20, batch_size=8, progress=False)
        for m in (None, 3)
    ]
    for name, samples in runs[0].samples.items():
        torch.testing.assert_close(runs[1].samples[name], samples, rtol=1e-8, atol=1e-10)
    assert "microbatch" not in runs[0].config
    assert runs[1].config["microbatch"] == 3


@pytest.mark.parametrize("name", ["compact", "conv2d", "lstm", "attention"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_autocast_is_as_close_as_its_precision(name: str, dtype: torch.dtype) -> None:
    """Within a few units of the reduced precision's last place, in float32, at the right scale.

    A loss scale left in before squaring would be off by a factor of 256."""
    model, (x, y) = make(name), batch(name, 5, 2, torch.float32)
    params, found = evaluate(model, x, y, autocast=dtype)
    tolerance = 16 * torch.finfo(dtype).eps
    for c in range(2):
        own = {k: p[c] for k, p in params.items()}
        samples = per_sample_loop(model, cross_entropy, x[c], y[c], own).samples
        scale = {k: g.square().mean(0).sqrt() for k, g in samples.items()}
        for k, g in samples.items():
            assert found.gradient[k].dtype == found.statistics.second[k].dtype == torch.float32
            error = (found.gradient[k][c] - g.mean(0)).norm() / scale[k].norm()
            assert error < tolerance, k
            second = g.square().mean(0)
            assert (found.statistics.second[k][c] - second).norm() < tolerance * second.norm(), k
        for b, row in found.statistics.cross.items():
            for w, cross in row.items():
                expected = (spread(samples[b], samples[w]) * samples[w]).mean(0)
                bound = (spread(scale[b][None], scale[w][None])[0] * scale[w]).norm()
                assert (cross[c] - expected).norm() < tolerance * bound, (b, w)


def test_autocast_does_compute_in_reduced_precision() -> None:
    model, (x, y) = make("compact"), batch("compact", 5, 2, torch.float32)
    _, full = evaluate(model, x, y)
    _, reduced = evaluate(model, x, y, autocast=torch.bfloat16)
    assert not torch.equal(full.loss, reduced.loss)
    posterior = Langevin(
        nn.Linear(3, 3), likelihoods.Categorical(), step_size=1e-4, autocast=torch.bfloat16
    ).sample((X, Y), 3, batch_size=5, progress=False)
    assert posterior.samples["weight"].dtype == torch.float32
    assert posterior.config["autocast"] == "torch.bfloat16"


def test_clipping_shortens_every_chain_by_itself() -> None:
    model, (x, y) = make("compact", torch.float64), batch("compact", 5, 3, torch.float64)
    _, plain = evaluate(model, x, y)
    norms = torch.stack([norm(plain.gradient, c) for c in range(3)])
    limit = float(norms.median())
    _, found = evaluate(model, x, y, clip=limit)
    for c in range(3):
        shorter = min(1.0, limit / float(norms[c]))
        for k, g in plain.gradient.items():
            torch.testing.assert_close(found.gradient[k][c], shorter * g[c])
    assert float(norms.min()) < limit < float(norms.max())
    torch.testing.assert_close(found.statistics.second, plain.statistics.second)


def norm(gradient: dict[str, Tensor], chain: int) -> Tensor:
    return torch.cat([g[chain].flatten() for g in gradient.values()]).norm()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"microbatch": 0}, ["microbatch", "positive", "got 0"]),
        ({"autocast": torch.float32}, ["autocast", "torch.bfloat16", "got torch.float32"]),
        ({"clip": 0.0}, ["clip", "positive", "got 0.0"]),
        ({"clip": "1"}, ["clip", "got '1'"]),
        (
            {"microbatch": 2, "preconditioner": preconditioners.FullFisher()},
            ["FullFisher", "leave"],
        ),
    ],
)
def test_bad_settings_are_refused(options: dict[str, object], words: list[str]) -> None:
    with pytest.raises(ValueError, match=r"got|leave") as caught:
        Langevin(nn.Linear(3, 3), likelihoods.Categorical(), **options)
    for word in words:
        assert word in str(caught.value)
