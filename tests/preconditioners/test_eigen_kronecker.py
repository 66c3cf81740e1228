"""EK-FAC and refreshed K-FAC: the metric after several batches against a loop in float64."""

from __future__ import annotations

from collections import defaultdict

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils import _pytree as pytree

from natural_langevin import Langevin, Posterior, State, likelihoods, priors
from natural_langevin.preconditioners import (
    EigenKroneckerFisher,
    KroneckerFisher,
    Preconditioner,
)
from oracle import chains_of, cross_entropy, dense, kronecker_loop, per_sample_loop
from small_run import sample_until

CHAINS, STEPS, EPS = 2, 5, 1e-3


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 2, bias=False)).double()


def batches() -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(STEPS, CHAINS, 6, 2, generator=generator, dtype=torch.float64)
    return list(zip(x, torch.randint(0, 2, (STEPS, CHAINS, 6), generator=generator), strict=True))


def states(preconditioner: Preconditioner) -> list[State]:
    """Before every step, and after the last."""
    sampler = Langevin(
        network(), likelihoods.Categorical(), preconditioner=preconditioner, chains=CHAINS,
        step_size=0.02, num_data=40, prior=priors.Gaussian(0.5),
    )  # fmt: skip
    state = sampler.init()._replace(params=chains_of(network(), CHAINS))
    found = [state]
    for batch in batches():
        state, _ = sampler.step(state, batch, chain_axis=True)
        found.append(state)
    return found


def gradient_matrices(samples: dict[str, Tensor], layer: str) -> Tensor:
    """V_n, the bias as first column."""
    weight = samples[f"{layer}.weight"]
    bias = samples.get(f"{layer}.bias")
    return weight if bias is None else torch.cat([bias[:, :, None], weight], dim=2)


def expected_inverse(visited: list[State], chain: int, refresh: int, every: int) -> dict:
    """C^{-1} of every layer, as a matrix on row-major (output, input): sample by sample."""
    model, A, G, U, S = network(), {}, {}, {}, {}
    for t, (state, (x, y)) in enumerate(zip(visited, batches(), strict=False)):
        if t % every:
            continue
        look, own = t // every, {k: p[chain] for k, p in state.params.items()}
        gamma = (look + 1) ** -0.5
        factors = kronecker_loop(model, cross_entropy, x[chain], y[chain], own)
        samples = per_sample_loop(model, cross_entropy, x[chain], y[chain], own).samples
        for layer, (a, g) in factors.items():
            A[layer] = a if t == 0 else (1 - gamma) * A[layer] + gamma * a
            G[layer] = g if t == 0 else (1 - gamma) * G[layer] + gamma * g
            if t > 0:  # the squares along every eigenvector of J, one after the other
                squares = torch.zeros(len(S[layer]), dtype=torch.float64)
                for v in gradient_matrices(samples, layer):
                    squares += (U[layer].T @ v.flatten()).square() / len(x[chain])
                S[layer] = (1 - gamma) * S[layer] + gamma * squares
            if look % refresh == 0:
                (l_a, u_a), (l_g, u_g) = torch.linalg.eigh(A[layer]), torch.linalg.eigh(G[layer])
                new = torch.kron(u_g, u_a)
                if t == 0:
                    S[layer] = torch.kron(l_g, l_a)
                else:
                    J = U[layer] @ S[layer].diag() @ U[layer].T
                    S[layer] = (new.T @ J @ new).diag()
                U[layer] = new
    return {layer: U[layer] @ (S[layer] + EPS).diag() @ U[layer].T for layer in S}


@pytest.mark.parametrize(("refresh", "every"), [(1, 1), (2, 1), (3, 1), (1, 2)])
def test_equals_the_dense_oracle(refresh: int, every: int) -> None:
    metric = EigenKroneckerFisher(damping=EPS, refresh=refresh, every=every)
    visited = states(metric)
    C = dense(lambda v: metric.apply(visited[-1].metric, v, defaultdict(lambda: EPS)),
              visited[-1].params)  # fmt: skip
    for c in range(CHAINS):
        expected = expected_inverse(visited, c, refresh, every)
        inverse = torch.linalg.inv(C[c])
        # In the order of parameters: 0.weight (3, 2), 0.bias (3), 2.weight (2, 3).
        first = torch.tensor([[6 + o, 2 * o, 2 * o + 1] for o in range(3)]).flatten()
        torch.testing.assert_close(inverse[first][:, first], expected["0"], rtol=1e-9, atol=1e-11)
        torch.testing.assert_close(inverse[9:, 9:], expected["2"], rtol=1e-9, atol=1e-11)
        assert inverse[:9, 9:].abs().max() < 1e-11


def test_kronecker_keeps_the_factors_of_every_third_batch() -> None:
    """The same C as by Cholesky at a refresh, and the same C until the next."""
    metric, plain = KroneckerFisher(damping=EPS, refresh=3), KroneckerFisher(damping=EPS)
    visited, eps = states(metric), defaultdict(lambda: EPS)
    like = visited[0].params
    C = [dense(lambda v, s=s: metric.apply(s.metric, v, eps), like) for s in visited]
    factors = ("inputs", "outputs", "second")
    for t in (1, 4):  # after the batches 0 and 3
        direct = {k: visited[t].metric[k] for k in factors}
        expected = dense(lambda v, m=direct: plain.apply(m, v, eps), like)
        torch.testing.assert_close(C[t], expected, rtol=1e-8, atol=1e-8)
    assert torch.equal(C[1], C[2])
    assert torch.equal(C[1], C[3])
    assert not torch.equal(C[3], C[4])


@pytest.mark.parametrize("kind", [EigenKroneckerFisher, KroneckerFisher])
def test_a_bias_with_another_damping(kind: type[Preconditioner]) -> None:
    """One factor for drift and noise, and eps_j = sum_i U_A[i, j]^2 eps_i where J vanishes."""
    metric = kind(refresh=2)
    last = states(metric)[-1]
    eps = {"0.weight": 1e-3, "0.bias": torch.tensor([0.5, 0.1]), "2.weight": 0.2}
    C = dense(lambda v: metric.apply(last.metric, v, eps), last.params)
    A = dense(lambda z: metric.sample(last.metric, z, eps), last.params)
    torch.testing.assert_close(A @ A.mT, C, rtol=1e-12, atol=1e-12 * float(C.abs().max()))
    if kind is EigenKroneckerFisher:
        zeros = pytree.tree_map(torch.zeros_like, last.metric["spectrum"])
        nothing = last.metric | {"spectrum": zeros}
        v = {k: torch.zeros_like(p) for k, p in last.params.items()}
        u_a = last.metric["inputs_basis"]["0.bias"]["0.weight"]
        v["0.bias"][:, 0], v["0.weight"][:, 0] = u_a[:, 0, 1], u_a[:, 1:, 1]
        found = metric.apply(nothing, v, eps)
        share = u_a[:, 0, 1].square()
        expected = 1 / (1e-3 + (eps["0.bias"] - 1e-3) * share)
        torch.testing.assert_close(found["0.bias"][:, 0], expected * u_a[:, 0, 1])
        torch.testing.assert_close(found["0.weight"][:, 0], expected[:, None] * u_a[:, 1:, 1])


@pytest.mark.parametrize("kind", [EigenKroneckerFisher, KroneckerFisher])
def test_a_chain_that_diverges_leaves_the_others_alone(kind: type[Preconditioner]) -> None:
    """LAPACK refuses what is not finite, of all chains at once."""
    sampler = Langevin(
        network(), likelihoods.Categorical(), preconditioner=kind(refresh=1), chains=CHAINS,
        num_data=40, step_size=0.02,
    )  # fmt: skip
    start = sampler.init()
    broken = start._replace(params={k: p.clone() for k, p in start.params.items()})
    broken.params["0.weight"][1] = torch.nan
    good, _ = sampler.step(start, batches()[0], chain_axis=True)
    after, info = sampler.step(broken, batches()[0], chain_axis=True)
    assert info.diverged.tolist() == [False, True]
    for name, p in good.params.items():
        assert torch.equal(after.params[name][0], p[0])


def test_a_stopped_run_goes_on_to_the_same_bits(tmp_path, monkeypatch) -> None:
    """Bases and eigenvalues are in the checkpoint, and refreshes keep their places. In layers wide
    enough for products to be rounded by how their factors lie in memory."""
    x, y = (torch.cat([b[i][0] for b in batches()]) for i in range(2))
    model = nn.Sequential(nn.Linear(2, 20), nn.Tanh(), nn.Linear(20, 2))

    def run(**checkpoint: object) -> Posterior:
        metric = EigenKroneckerFisher(refresh=3, adapt="always")
        sampler = Langevin(
            model,
            likelihoods.Categorical(),
            preconditioner=metric,
            chains=CHAINS,
            step_size=0.02,  # the recipe would take longer than the run
            compile=False,
        )
        return sampler.sample(
            (x.float(), y), 13, batch_size=6, burn_in=3, thin=2, progress=False, **checkpoint
        )

    whole = run()
    sample_until(monkeypatch, 2, lambda: run(checkpoint=tmp_path, every=1))
    resumed = run(checkpoint=tmp_path, every=1)
    for name, draws in whole.samples.items():
        assert torch.equal(resumed.samples[name], draws)


@pytest.mark.parametrize("wrong", [0, -1, 2.5, True])
def test_refresh_is_checked(wrong: object) -> None:
    for kind in (EigenKroneckerFisher, KroneckerFisher):
        with pytest.raises(ValueError, match=f"refresh must be a whole number .* got {wrong!r}"):
            kind(refresh=wrong)
    with pytest.raises(ValueError, match=r"refresh must be a whole number .* got None"):
        EigenKroneckerFisher(refresh=None)


def test_predictions_are_finite() -> None:
    """A short run of a convolution with shared weights, at the defaults."""
    model = nn.Sequential(nn.Conv1d(1, 2, 2), nn.Tanh(), nn.Flatten(), nn.Linear(2, 2)).double()
    x, y = batches()[0][0].flatten(0, 1)[:, None], batches()[0][1].flatten()
    sampler = Langevin(
        model, likelihoods.Categorical(), preconditioner=EigenKroneckerFisher(), step_size=0.01
    )
    posterior = sampler.sample((x, y), 12, batch_size=4, burn_in=6, progress=False)
    params = {k: v[0, -1] for k, v in posterior.samples.items()}
    assert functional_call(model, params, (x,)).isfinite().all()
    assert posterior.last["0.weight"].std(0).min() > 0
