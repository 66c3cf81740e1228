"""Control variates (SVRG): unbiased, quiet near the anchor, and at the right temperature where a
plain minibatch chain is too hot."""

from __future__ import annotations

import pytest
import torch
from gaussian_law import PARAMETERS, make_problem, whiten
from monte_carlo import assert_normal, assert_within
from test_heat import full_batch_law
from test_linear_regression import gaussian_prior
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from natural_langevin import Langevin, Posterior, likelihoods, preconditioners
from natural_langevin.data import Subsets
from natural_langevin.dynamics import Overdamped, Underdamped
from small_run import assert_same, data, network, sample_until, sampler

SIZE, BATCH, CHAINS = 200, 10, 384


def gradients(distance: float, anchored: bool) -> tuple[Tensor, Tensor]:
    """Of every minibatch of 5 of 60 data of an epoch, flat, (12, p); and that of all data."""
    found = sampler(1, control_variates=100 if anchored else None)
    x, y = data()
    engine, state = found.prepare((x, y), steps=1, batch_size=5)
    for pause in engine.pauses:
        state = pause(state, 0)
    generator = torch.Generator().manual_seed(2)
    params = {
        k: p + distance * torch.randn(p.shape, generator=generator) for k, p in state.params.items()
    }
    state, on = state._replace(params=params), engine.dynamics

    def flat(rows: Tensor) -> Tensor:
        g = on.evaluate(state, (x[rows], y[rows]), chain_axis=False).gradient
        return torch.cat([p.flatten() for p in g.values()])

    on.prepare(params, x)
    on.prepare(params, x[:5])
    each = torch.stack([flat(rows) for rows in torch.arange(60).split(5)])
    whole = on.gradient(state, params, (x, y), chain_axis=False)
    return each, torch.cat([p.flatten() for p in whole.values()])


@pytest.mark.parametrize("distance", [0.0, 0.03, 0.3])
def test_unbiased_and_quiet_near_the_anchor(distance: float) -> None:
    """The minibatches of an epoch add up to all data: their mean is exact, not just expected."""
    (plain, exact), (reduced, same) = gradients(distance, False), gradients(distance, True)
    torch.testing.assert_close(exact, same)
    for each in (plain, reduced):
        torch.testing.assert_close(each.mean(0), exact, rtol=1e-4, atol=1e-6)
    ratio = float(reduced.var(0).sum() / plain.var(0).sum())
    print(f"at distance {distance}: variance {ratio:.2g} of the plain one")
    assert ratio < {0.0: 1e-10, 0.03: 0.01, 0.3: 0.5}[distance]


def test_the_posterior_of_a_linear_regression_is_exact_where_a_plain_chain_is_too_hot() -> None:
    """The reference is the exact law of the chain that sees all data at every step: what is left of
    it is the step size alone. Control variates leave (H_B - H)(theta - theta~), which adds 0.03 to
    the mean square of 1 (4,000 chains of the recursion written out), within the error here."""
    problem, eta = make_problem(num_data=SIZE), 0.02
    S = full_batch_law(problem, torch.eye(PARAMETERS, dtype=torch.float64), eta, 1.0)
    widths = {}
    for every in (None, SIZE // BATCH):
        found = problem.sampler(
            preconditioners.Euclidean(), gaussian_prior(problem), CHAINS, step_size=eta,
            control_variates=every, mean_rate=None, seed=1,
        )  # fmt: skip
        posterior = found.sample(
            (problem.x, problem.y), 160, batch_size=BATCH, thin=160, progress=False
        )
        theta = torch.cat([posterior.samples[k].flatten(1) for k in ("weight", "bias")], dim=1)
        z = whiten(theta, problem.posterior()[0], S)
        widths[every] = z.square().mean()
        assert posterior.config.get("control_variates") == every
        assert posterior.config["execution"] == ("eager" if every else "native")
    print({k: round(float(v), 3) for k, v in widths.items()})
    assert_normal(z)
    error = (2 / z.numel()) ** 0.5  # 0.036
    assert_within(z.square().mean()[None] - 1, torch.tensor([error]))
    assert widths[None] > 1 + 10 * error


def short(compile: bool | str = "auto", what: object = None, **options: object) -> Posterior:
    found = sampler(3, compile=compile, step_size=0.01, control_variates=5,
                    dynamics=Underdamped(0.3))  # fmt: skip
    return found.sample(
        what or data(), 24, batch_size=20, burn_in=4, thin=2, progress=False, **options
    )  # type: ignore[arg-type]


def test_stopped_and_resumed_it_ends_with_the_same_bits(tmp_path, monkeypatch) -> None:
    sample_until(monkeypatch, 6, lambda: short(checkpoint=tmp_path, every=7))
    assert_same(short(), short(checkpoint=tmp_path, every=7))


def assert_close(one: Posterior, other: Posterior) -> None:
    for name, value in one.samples.items():
        torch.testing.assert_close(value, other.samples[name], rtol=1e-4, atol=1e-5)


def test_a_chain_that_sees_all_rows_as_its_own_is_one_that_shares_them() -> None:
    x, y = data()
    assert_close(short(), short(what=Subsets(x, y, torch.arange(60).expand(3, -1))))


@pytest.mark.thorough
def test_the_compiled_step_is_the_same(monkeypatch) -> None:
    monkeypatch.setattr("natural_langevin.execution.compiled.BACKEND", "eager")
    assert_close(short(), short(True))


def test_the_metric_and_the_probe_are_of_the_plain_minibatch() -> None:
    """RMSProp squares the minibatch's gradient, with an anchor and without; the probe measures the
    noise and says nothing of the minibatches'."""
    ends = []
    for every in (None, 1):
        found = sampler(2, control_variates=every, preconditioner=preconditioners.RMSProp())
        engine, state = found.prepare(data(), steps=1, batch_size=20)
        ends.append(engine.run(state, 0, 1)[0])
    for a, b in zip(*(torch.utils._pytree.tree_leaves(end.metric) for end in ends), strict=True):
        torch.testing.assert_close(a, b)
    found = sampler(2, control_variates=5, step_size=1e-3)
    kinetic = found.effective_temperature(data(), batch_size=10, steps=30)
    assert kinetic.minibatch is None
    assert not kinetic.noise.differs_from(1.0)


def refused(match: str, **options: object) -> None:
    with pytest.raises(ValueError, match=match):
        Langevin(
            network(), options.pop("likelihood", likelihoods.Categorical()), step_size=1e-3,  # type: ignore[arg-type]
            **({"control_variates": 5} | options),  # type: ignore[arg-type]
        )  # fmt: skip


def test_what_does_not_go_with_them_is_refused_with_the_remedy() -> None:
    refused("num_data / batch_size", control_variates=0)
    refused("use only one", clip=1.0)
    refused("use only one", dynamics=Overdamped(correct_heat=True))
    refused("sigma=0.3", likelihood=likelihoods.Gaussian("rmse"))
    found, (x, y) = sampler(1, control_variates=5, num_data=60), data()
    with pytest.raises(ValueError, match=r"step\(\)"):
        found.step(found.init(), (x, y))
    with pytest.raises(ValueError, match="a DataLoader does not offer"):
        found.sample(DataLoader(TensorDataset(x, y), batch_size=20), 4, progress=False)
