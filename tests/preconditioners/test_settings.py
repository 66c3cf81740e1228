"""The settings that averaged metrics share: rates, damping from the prior, refusals."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree

from natural_langevin import Langevin, likelihoods, priors, schedules
from natural_langevin.preconditioners import (
    REGISTRY,
    DiagonalFisher,
    FullFisher,
    QuasiDiagonalFisher,
    RMSProp,
    resolve_damping,
)
from natural_langevin.preconditioners.base import FLAT_DAMPING
from natural_langevin.run.problem.step_size_checks import largest_step

AVERAGED = [kind for name, kind in REGISTRY.items() if name != "euclidean"]
averaged = pytest.mark.parametrize("kind", AVERAGED, ids=lambda k: k.__name__)


@averaged
def test_two_names_of_one_rate(kind) -> None:  # type: ignore[no-untyped-def]
    assert kind().decay == kind().ema_rate == schedules.inverse_sqrt()
    for options in ({"decay": 0.3}, {"ema_rate": 0.3}):
        metric = kind(**options)
        assert metric.decay == metric.ema_rate == 0.3
        assert "decay=0.3" in repr(metric)
        assert "ema_rate" not in repr(metric)
    with pytest.raises(ValueError, match=r"two names of one rate, got both \(0.1 and 0.2\)"):
        kind(decay=0.1, ema_rate=0.2)


@averaged
def test_defaults_and_refusals(kind) -> None:  # type: ignore[no-untyped-def]
    metric = kind()
    assert (metric.fresh, metric.adapt, metric.every, metric.damping) == (
        False, "burn-in", 1, "prior"
    )  # fmt: skip
    text = repr(kind(fresh=True, adapt="always", every=4))
    assert all(t in text for t in ("fresh=True", "adapt='always'", "every=4"))
    for options, message in (
        ({"adapt": "never"}, 'adapt must be "burn-in" or "always", got \'never\''),
        ({"every": 0}, "every must be a whole number of steps from 1 on, got 0"),
        ({"every": 2.0}, "got 2.0"),
        ({"damping": -1.0}, 'damping must be "prior", or finite and at least 0, got -1.0'),
        ({"damping": "posterior"}, "got 'posterior'"),
        ({"damping": math.nan}, "got nan"),
        ({"damping": torch.tensor([0.1, -1.0])}, "finite and at least 0, got .0.1"),
    ):
        with pytest.raises(ValueError, match=message):
            kind(**options)
    with pytest.raises(TypeError, match='True, False or "burn-in", got 1'):
        kind(fresh=1)


def test_rate_of_every_step() -> None:
    """decay(t // every) where t % every == 0 and, for "burn-in", t < burn_in; else 0."""
    metric = DiagonalFisher(every=3, decay=schedules.polynomial(1.0, offset=1, power=1.0))
    assert [metric.ema_schedule(7)(t) for t in range(10)] == [
        1, 0, 0, 1 / 2, 0, 0, 1 / 3, 0, 0, 0
    ]  # fmt: skip
    always = RMSProp(adapt="always", decay=0.5).ema_schedule(burn_in=2)
    assert [always(t) for t in range(4)] == [0.5] * 4
    assert DiagonalFisher(decay=0.5).ema_schedule()(10**6) == 0.5  # no burn-in is known


@pytest.mark.parametrize("decay", [schedules.polynomial_average(3.0, before=1.0), 0.3, None])
@pytest.mark.parametrize(("every", "burn_in"), [(1, 7), (3, 7), (3, 9), (2, 0), (1, 10**6)])
def test_a_table_of_the_average_is_its_schedule_step_by_step(decay, every, burn_in):
    """To the last bit, from wherever it begins."""
    metric = RMSProp(decay=decay, every=every) if decay else RMSProp(every=every)
    gamma = metric.ema_schedule(burn_in)
    for start, stop in ((0, 12), (4, 12), (8, 9), (7, 7)):
        found = schedules.tabulate(gamma, start, stop, name="decay", chains=1, high=1.0)
        assert found.flatten().tolist() == [float(gamma(t)) for t in range(start, stop)]


@pytest.mark.parametrize("compile", [False, "auto"])
def test_a_damping_for_each_chain_is_that_of_the_chain_alone(compile) -> None:  # type: ignore[no-untyped-def]
    """Chains of a grid over dampings end where chains of one damping do, natively and eagerly."""
    x, y = torch.randn(40, 3), torch.arange(40) % 2

    def ends(damping: float | torch.Tensor) -> torch.Tensor:
        sampler = Langevin(
            nn.Linear(3, 2), likelihoods.Categorical(), prior=priors.Gaussian(1.0),
            preconditioner=QuasiDiagonalFisher(damping=damping), step_size=0.05, chains=2,
            mean_rate=None, compile=compile, init="prior",
        )  # fmt: skip
        engine, state = sampler.prepare((x, y), steps=20, batch_size=10, burn_in=10)
        return engine.run(state, 0, 20)[0].params["weight"]

    both = ends(torch.tensor([0.01, 1.0]))
    torch.testing.assert_close(both[0], ends(0.01)[0])
    torch.testing.assert_close(both[1], ends(1.0)[1])
    assert (both[1] - ends(0.01)[1]).abs().max() > 0.01


def test_damping_is_the_priors_share_of_the_curvature() -> None:
    chains = torch.tensor([0.1, 0.5], dtype=torch.float64)
    prior = {
        "w": priors.Gaussian(0.1), "c": priors.Gaussian(chains), "f": priors.Flat(),
        "n": priors.NormalInverseGamma(alpha=2.0, beta=0.5),
    }  # fmt: skip
    found = resolve_damping(DiagonalFisher(), prior, 60_000, discrete=True)
    assert found["w"] == pytest.approx(1 / 6000)  # the paper's 1e-4, but for a factor of 5/3
    torch.testing.assert_close(found["c"], 1 / (60_000 * chains))
    assert found["f"] == FLAT_DAMPING
    assert found["n"] == pytest.approx(4 / 60_000)
    # A confident network has almost no model Fisher: never below 1e-2.
    model = resolve_damping(DiagonalFisher(targets="model"), prior, 60_000, discrete=True)
    assert model["w"] == 1e-2
    assert model["c"].tolist() == [1e-2, 1e-2]
    assert resolve_damping(DiagonalFisher(targets="model"), prior, 50, discrete=True)[
        "w"
    ] == pytest.approx(0.2)
    # Real targets have gradients everywhere, in units of their own.
    model = resolve_damping(DiagonalFisher(targets="model"), prior, 60_000, discrete=False)
    assert model["w"] == pytest.approx(1 / 6000)
    # RMSProp's C^{-1} is a root.
    assert resolve_damping(RMSProp(), prior, 50, discrete=True)["w"] == pytest.approx(0.2**2)
    # N may be a tensor, as in a compiled step.
    tensor = resolve_damping(DiagonalFisher(), prior, torch.tensor(50.0), discrete=True)
    assert float(tensor["w"]) == pytest.approx(0.2)


@pytest.mark.parametrize("kind", [DiagonalFisher, QuasiDiagonalFisher, FullFisher, RMSProp])
def test_where_the_data_say_nothing_the_prior_alone_moves(kind) -> None:  # type: ignore[no-untyped-def]
    """Inputs that are zero: J = 0 for the weights, and the step is theta <- (1 - eta) theta,
    whatever N and the variance of the chain and the tensor are."""
    variance = torch.tensor([0.1, 2.0], dtype=torch.float64)
    prior = {"weight": priors.Gaussian(variance), "bias": priors.Gaussian(0.7)}
    sampler = Langevin(
        nn.Linear(2, 1).double(), likelihoods.Gaussian(0.5), prior=prior, chains=2, num_data=7,
        preconditioner=kind(), temperature=0.0, step_size=0.25,
    )  # fmt: skip
    state = sampler.init()
    x, y = torch.zeros(3, 2, dtype=torch.float64), torch.ones(3, 1, dtype=torch.float64)
    new, _ = sampler.step(state, (x, y))
    torch.testing.assert_close(new.params["weight"], 0.75 * state.params["weight"])


def test_largest_step_follows_the_damping() -> None:
    prior = {"w": priors.Gaussian(0.1), "b": priors.Gaussian(torch.tensor([1.0, 0.5]))}
    assert largest_step(DiagonalFisher(), prior, 48, discrete=True) == pytest.approx(1.0)
    assert largest_step(DiagonalFisher(damping=1e-4), prior, 48, discrete=True) == pytest.approx(
        4.8e-4
    )
    assert largest_step(DiagonalFisher(), {"w": priors.Flat()}, 48, discrete=True) == math.inf
    assert largest_step(RMSProp(), prior, 48, discrete=True) == pytest.approx(1.0)


def test_one_damping_per_tensor_and_chain_in_drift_and_noise() -> None:
    """C is the inverse of J + diag eps, block by block, and A A^T is that C."""
    generator = torch.Generator().manual_seed(0)
    params = {"w": torch.zeros(2, 3, 2), "b": torch.zeros(2, 3)}
    params = {k: p.double() for k, p in params.items()}
    metric = FullFisher()
    state = metric.init(params, {})
    g = torch.randn(2, 20, 9, generator=generator, dtype=torch.float64)
    state["fisher"][""] = g.mT @ g / 20
    eps = {"w": torch.tensor([0.1, 0.3]).double(), "b": 0.7}
    full = torch.cat([eps["w"][:, None].expand(2, 6), torch.full((2, 3), 0.7)], dim=1)
    expected = torch.linalg.inv(state["fisher"][""] + torch.diag_embed(full.double()))
    factor = metric.factor(state, eps)
    for image, matrix in ((factor.apply, expected), (factor.sample, None)):
        columns = []
        for e in torch.eye(9, dtype=torch.float64):
            tree = {"w": e[:6].reshape(3, 2).expand(2, 3, 2), "b": e[6:].expand(2, 3)}
            found = image(tree)
            columns.append(torch.cat([found["w"].flatten(1), found["b"]], dim=1))
        dense = torch.stack(columns, dim=-1)
        product = dense if matrix is not None else dense @ dense.mT
        torch.testing.assert_close(product, expected)
    assert pytree.tree_leaves(state)[0].dtype == torch.float64
