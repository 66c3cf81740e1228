"""Means of every weight, weights to start at: shapes, chains, and every way of running a step."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from natural_langevin import Langevin, likelihoods, models, preconditioners, priors, random

FAMILIES = [
    priors.Gaussian(0.3),
    priors.Laplace(0.4),
    priors.StudentT(0.3, df=3.0),
    priors.ScaleMixture((1.0, 0.04), (1, 3)),
    priors.NormalInverseGamma(alpha=2.0, beta=0.4),
]


def network(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return models.mlp(3, 3, (4,), activation=nn.Tanh)


def given(seed: int, chains: int | None = None) -> dict[str, Tensor]:
    """Random weights by name, with a chain axis or without."""
    g = torch.Generator().manual_seed(seed)
    front = () if chains is None else (chains,)
    return {k: torch.randn(*front, *p.shape, generator=g) for k, p in network().named_parameters()}


def rows() -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(1)
    return torch.randn(60, 3, generator=g), torch.randint(0, 3, (60,), generator=g)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda p: type(p).__name__)
@pytest.mark.parametrize("first", [1, 2])
def test_a_mean_moves_density_gradient_and_draws(family: priors.Prior, first: int) -> None:
    g = torch.Generator().manual_seed(0)
    theta = torch.randn(2, 4, 3, generator=g, dtype=torch.float64)
    mean = torch.randn(first, 4, 3, generator=g, dtype=torch.float64)
    moved = replace(family, mean=mean)  # type: ignore[type-var]
    torch.testing.assert_close(moved.log_density(theta + mean), family.log_density(theta))
    torch.testing.assert_close(moved.gradient(theta + mean), family.gradient(theta))
    key = random.stream(random.origin(0, random.INIT, torch.arange(2)), 0)
    drawn, centred = (p.sample(key, (4, 3), torch.float64) for p in (moved, family))
    torch.testing.assert_close(drawn, centred + mean)
    assert moved.precision == family.precision


def test_shapes_that_resolve_takes() -> None:
    vector, matrix = torch.zeros(4), torch.zeros(2, 3)
    for shape, chains, mean, expected in (
        (vector, 3, torch.ones(4), (1, 4)),
        (vector, 3, torch.ones(3), (3,)),
        (vector, 3, torch.ones(3, 4), (3, 4)),
        (vector, 4, torch.ones(1, 4), (1, 4)),
        (vector, 4, torch.ones(4, 4), (4, 4)),
        (vector, 1, torch.ones(4), (1, 4)),
        (matrix, 2, torch.ones(2, 3), (1, 2, 3)),
        (matrix, 2, torch.ones(2, 2, 3), (2, 2, 3)),
        (torch.zeros(()), 2, torch.ones(2), (2,)),
    ):
        found = priors.resolve(priors.Gaussian(1.0, mean), {"w": shape}, chains)["w"]
        assert tuple(found.mean.shape) == expected
        picked = priors.of_chains({"w": found}, torch.tensor([0, 0]))["w"].mean
        assert len(picked) == (1 if expected[0] == 1 and len(expected) > 1 else 2)
    assert priors.resolve(priors.Gaussian(1.0, torch.tensor(2.0)), ["w"], 2)["w"].mean == 2


@pytest.mark.parametrize(
    ("parameter", "mean", "words"),
    [
        (torch.zeros(4), torch.ones(4), ["mean.reshape(1, 4)", "expand(4, 4)"]),
        (torch.zeros(4), [0.0, 1.0, 2.0, 3.0], ["mean.reshape(1, 4)", "4 chains"]),
        (torch.zeros(1, 4), torch.ones(4), ["mean.reshape(1, 1, 4)", "expand(4, 1, 4)"]),
        (torch.zeros(2, 3), torch.ones(3, 2), ["(3, 2)", "'w' of shape (2, 3)", "priors.around"]),
        (torch.zeros(2, 3), torch.ones(3, 2, 3), ["(3, 2, 3)", "4 chains"]),
    ],
)
def test_shapes_that_it_refuses(parameter: Tensor, mean: object, words: list[str]) -> None:
    with pytest.raises(ValueError, match="mean") as caught:
        priors.resolve(priors.Gaussian(1.0, mean), {"w": parameter}, 4)  # type: ignore[arg-type]
    for word in words:
        assert word in str(caught.value)


def test_around_networks_and_state_dicts() -> None:
    one, two = network(0), network(1)
    shared = priors.around(one, variance=0.1)
    for k, p in one.named_parameters():
        assert torch.equal(shared[k].mean[0], p)
    each = priors.around([one.state_dict(), two], variance=dict.fromkeys(shared, 0.1))
    assert torch.equal(each["0.bias"].mean, torch.stack([one[0].bias, two[0].bias]).detach())
    # Four chains and a bias of four: no doubt about whose means they are.
    sampler = Langevin(one, likelihoods.Categorical(), prior=shared, chains=4, step_size=1e-3)
    assert sampler.problem.prior["0.bias"].mean.shape == (1, 4)
    stacked = priors.around(given(0, chains=2), variance=0.1)
    sampler = Langevin(one, likelihoods.Categorical(), prior=stacked, chains=2, step_size=1e-3)
    assert sampler.problem.prior["0.bias"].mean.shape == (2, 4)
    with pytest.raises(ValueError, match="chains 0 and 1"):
        priors.around([one, nn.Linear(2, 2)], variance=0.1)
    with pytest.raises(TypeError, match="state_dict"):
        priors.around(3.0, variance=0.1)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"no value for .*2\.weight"):
        priors.around(one, variance={"0.weight": 0.1, "0.bias": 0.1, "2.bias": 0.1})


@pytest.mark.parametrize("family", FAMILIES, ids=lambda p: type(p).__name__)
@pytest.mark.parametrize("chains", [None, 2])
def test_the_native_engine_is_the_reference(family: priors.Prior, chains: int | None) -> None:
    """Steps of both ways, with means of every weight, shared and per chain, and a power."""
    means = given(3, chains)
    prior = {k: replace(family, mean=m if chains else m[None]) for k, m in means.items()}  # type: ignore[type-var]

    def run(compile: str | bool) -> dict[str, Tensor]:
        sampler = Langevin(
            network(), likelihoods.Categorical(), prior=prior, chains=2, step_size=3e-2,
            compile=compile, likelihood_power=torch.tensor([0.2, 1.5]),
        )  # fmt: skip
        found = sampler.sample(rows(), 12, batch_size=20, burn_in=4, progress=False)
        assert found.config["execution"] == ("native" if compile else "eager")
        return found.last

    native, reference = run("auto"), run(False)
    for k in means:
        torch.testing.assert_close(native[k], reference[k], rtol=1e-3, atol=1e-5)
    moved = max(
        float((native[k] - p.detach()).abs().max()) for k, p in network().named_parameters()
    )
    assert moved > 0.1


def test_damping_by_the_prior_is_of_its_variance_alone() -> None:
    prior = priors.around(network(), variance=0.25)
    sampler = Langevin(
        network(), likelihoods.Categorical(), prior=prior, chains=2, step_size=1e-3,
        likelihood_power=torch.tensor([1.0, 0.5]),
    )  # fmt: skip
    damping = sampler.frame.damping(["0.bias"], 100.0)["0.bias"]
    torch.testing.assert_close(damping, torch.tensor([0.04, 0.08]))


def test_chains_start_at_given_weights() -> None:
    def start(init: object, chains: int | None = 2, **options: object) -> dict[str, Tensor]:
        found = Langevin(
            network(), likelihoods.Categorical(), init=init, chains=chains, step_size=1e-3,
            **options,
        )  # fmt: skip
        return found.init().params

    one, each = given(0), given(1, chains=2)
    for k, p in start(one).items():
        assert torch.equal(p, torch.stack([one[k]] * 2))
    for k, p in start(each).items():
        assert torch.equal(p, each[k])
    for k, p in start([network(1), network(2).state_dict()]).items():
        both = [dict(network(s).named_parameters())[k] for s in (1, 2)]
        assert torch.equal(p, torch.stack(both).detach())
    assert torch.equal(start(network(5))["0.bias"][1], network(5)[0].bias.detach())
    assert len(start([network()] * 3, chains=None)["0.bias"]) == 3
    with pytest.raises(ValueError, match="3 networks for 2 chains"):
        start([network()] * 3)
    with pytest.raises(ValueError, match=r"no weights for .*2\.bias"):
        start({k: v for k, v in one.items() if k != "2.bias"})
    with pytest.raises(ValueError, match="does not have"):
        start(one | {"3.bias": torch.zeros(3)})
    with pytest.raises(ValueError, match=r"\(2, 4, 3\)"):
        start(one | {"0.weight": torch.zeros(3, 4, 3)})
    with pytest.raises(ValueError, match="state dict"):
        start("modell")


def test_frozen_weights_and_buffers_may_be_in_a_state_dict() -> None:
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)).eval()
    net[0].requires_grad_(False)
    net[1].requires_grad_(False)
    state = copy.deepcopy(net.state_dict())
    sampler = Langevin(net, likelihoods.Categorical(), init=state, chains=2, step_size=1e-3)
    assert torch.equal(sampler.init().params["2.bias"][1], state["2.bias"])


def test_a_run_from_given_weights_resumes_only_as_itself(tmp_path) -> None:  # type: ignore[no-untyped-def]
    def run(seed: int) -> Tensor:
        sampler = Langevin(
            network(), likelihoods.Categorical(), init=given(seed), chains=2, step_size=1e-3,
            preconditioner=preconditioners.Euclidean(),
        )  # fmt: skip
        found = sampler.sample(rows(), 6, checkpoint=tmp_path / "run", progress=False)
        return found.samples["0.weight"]

    assert torch.equal(run(0), run(0))
    with pytest.raises(Exception, match="init_values"):
        run(1)


def test_the_recipe_runs_from_given_weights_around_them() -> None:
    centre = given(0, chains=2)
    sampler = Langevin(
        network(), likelihoods.Categorical(), prior=priors.around(centre, variance=1e-4),
        init=centre, chains=2, likelihood_power=0.5,
    )  # fmt: skip
    found = sampler.sample(rows(), 60, progress=False)
    for k, m in centre.items():
        assert float((found.samples[k].mean(1) - m).abs().max()) < 0.05
    assert found.config["alike"] == [0, 1]
