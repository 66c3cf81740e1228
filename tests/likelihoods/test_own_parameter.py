"""A likelihood's own parameter, sampled with the network: its law, its gradients, its way back."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from natural_langevin import Langevin, Posterior, likelihoods, models, priors, random
from natural_langevin.likelihoods import Likelihood
from natural_langevin.posterior.units import Units
from natural_langevin.recipe.settings import Settings
from natural_langevin.run.problem import standard_units

HALF, LINE = priors.HalfNormal(1.0), nn.Linear(2, 1)
#: With the parameter sampled, and the same at 0.4; how many outputs a target of one number has.
KINDS = {
    "gaussian": (likelihoods.Gaussian(sigma=HALF), likelihoods.Gaussian(0.4)),
    "student": (likelihoods.StudentT(5.0, HALF), likelihoods.StudentT(5.0, 0.4)),
    "counts": (likelihoods.NegativeBinomial(HALF), likelihoods.NegativeBinomial(0.4)),
    "heteroscedastic": (likelihoods.HeteroscedasticGaussian(HALF), None),
}


def rows(kind: str, targets: int = 1, count: int = 12) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(0)
    x = torch.randn(count, 2, generator=g)
    y = x[:, :1] * torch.linspace(1, 2, targets) + 0.3 * torch.randn(count, targets, generator=g)
    return x, (y.abs() * 3).round() if kind == "counts" else y


@pytest.mark.parametrize("targets", [1, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_law(kind: str, targets: int) -> None:
    """The loss, the law and the draws are those of the likelihood with the value given."""
    own, given = KINDS[kind]
    _, y = rows(kind, targets)
    outputs = torch.randn(len(y), own.outputs_per_target * targets)
    u = torch.full((len(y), 1), math.log(0.4))
    key = random.stream(random.origin(0, random.LABELS, torch.arange(1)), 0)[0]
    if given is None:  # predicts the noise levels: sigma is added to all
        given, shifted = likelihoods.HeteroscedasticGaussian(), outputs.clone()
        shifted[:, targets:] += 2 * math.log(0.4)
    else:
        shifted = outputs
    column = torch.cat([outputs, u], 1)
    own.check(column, y)
    torch.testing.assert_close(own.log_loss(column, y, {}), given.log_loss(shifted, y, {}))
    torch.testing.assert_close(
        own._known(column, {}).log_prob(y), given._known(shifted, {}).log_prob(y)
    )
    torch.testing.assert_close(own.sample(column, key, {}), given.sample(shifted, key, {}))
    with pytest.raises(ValueError, match="values per sample"):
        own.check(outputs[:, 1:], y)


class Plain(nn.Module):
    """Not a Sequential, and one number per sample."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(2, 4), nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.two(self.one(x).tanh())[:, 0]


@pytest.mark.parametrize("network", [lambda: models.mlp(2, 1, (4,)), Plain, lambda: LINE])
def test_statistics(network: object) -> None:
    """The metric's second moments of u are those of a loop over samples."""
    model = network()  # type: ignore[operator]
    x, y = rows("gaussian")
    sampler = Langevin(
        model, KINDS["gaussian"][0], prior=priors.Gaussian(1.0), num_data=12, chains=2,
        step_size=1e-3,
    )  # fmt: skip
    state = sampler.init()
    after, _ = sampler.step(state, (x, y))
    r = y[:, 0] - model(x).reshape(-1)
    wanted = (1 - r.square()).square().mean().detach()
    torch.testing.assert_close(
        after.metric["second"]["likelihood.log_sigma"], wanted.expand(2, 1), rtol=1e-4, atol=0
    )
    assert model(x).shape == sampler.model(x)[..., :-1].reshape(model(x).shape).shape


@pytest.mark.parametrize(
    ("kind", "prior"),
    [
        ("gaussian", HALF), ("gaussian", priors.LogNormal(variance=0.5)),
        ("student", priors.HalfCauchy(0.7)), ("counts", priors.Gamma(shape=2.0, rate=3.0)),
        ("heteroscedastic", priors.InverseGamma(shape=3.0, scale=0.5)),
        ("gaussian", priors.Positive()),
    ],
)  # fmt: skip
def test_native_steps(kind: str, prior: priors.PositivePrior) -> None:
    """Steps in C are those of the reference, with the metric of units too."""
    own = type(KINDS[kind][0])
    likelihood: Likelihood = own(5.0, prior) if kind == "student" else own(prior)  # type: ignore[call-arg]
    data = rows(kind, 2)
    outputs = 2 * likelihood.outputs_per_target
    metric = {"preconditioner": None} if kind == "student" else {}
    found = []
    for compile in ("auto", False):
        torch.manual_seed(1)
        network = models.mlp(2, outputs, (3,), activation=nn.Tanh)
        sampler = Langevin(
            network, likelihood, prior=priors.Gaussian(1.0), chains=2, step_size=1e-2,
            compile=compile, **metric,
        )  # fmt: skip
        run = sampler.sample(data, steps=4, burn_in=0, thin=1, batch_size=5, progress=False)
        found.append(run)
    assert found[0].config["execution"] == "native"
    for name, wanted in found[1].samples.items():
        torch.testing.assert_close(found[0].samples[name], wanted, rtol=1e-3, atol=1e-4)


def exact(x: Tensor, y: Tensor, prior: priors.PositivePrior) -> tuple[float, float]:
    """Mean and standard deviation of ln sigma of a linear model under N(0, 1), by a fine grid."""
    X = torch.cat([x, torch.ones(len(x), 1)], 1).double()
    grid = torch.linspace(-6, 4, 400).double()
    cover = (X @ X.T) + (2 * grid).exp()[:, None, None] * torch.eye(len(x)).double()
    law = torch.distributions.MultivariateNormal(torch.zeros(len(x)).double(), cover)
    height = law.log_prob(y.double().flatten()) + prior.log_density(grid[:, None])
    weight = height.softmax(0)
    mean = (weight * grid).sum()
    return float(mean), float((weight * (grid - mean).square()).sum().sqrt())


def test_eight_rows() -> None:
    """The law of ln sigma with eight rows, against quadrature; tolerances of four errors."""
    g = torch.Generator().manual_seed(8)
    x = torch.randn(8, 2, generator=g)
    y = x @ torch.tensor([[1.0], [-0.5]]) + 0.3 * torch.randn(8, 1, generator=g)
    sampler = Langevin(LINE, KINDS["gaussian"][0], prior=priors.Gaussian(1.0), chains=32)
    found = sampler.sample((x, y), steps=2000, progress=False)
    assert found.sigma is not None
    assert found.sigma.shape == (32, found.draws)
    assert found.config["execution"] == "native"
    u = found.sigma.double().log()
    mean, sd = exact(x, y, HALF)
    error = float(u.mean(1).std()) / math.sqrt(32)  # of independent chains
    assert error < 0.06 * sd
    assert abs(float(u.mean()) - mean) < 4 * error + 0.02 * sd
    assert abs(float(u.std()) / sd - 1) < 0.12
    assert found.diagnose(x).mixing.values.shape[-1] == 8
    with pytest.raises(ValueError, match="no parameter matches"):
        found.diagnose(x, parameters=["wieght"])
    found.samples["likelihood.log_sigma"][:16] += 2.0
    verdict = found.diagnose(x).verdicts[0]
    assert "likelihood.log_sigma[0], R-hat " in verdict


@pytest.mark.parametrize("kind", ["gaussian", "student", "heteroscedastic"])
def test_units(kind: str) -> None:
    """Targets of a thousand are sampled in units of their size, with the prior in them too."""
    likelihood = KINDS[kind][0].in_units(1e-3)
    x, y = rows(kind, 2)
    outputs = 2 * likelihood.outputs_per_target
    sampler = Langevin(models.mlp(2, outputs, (3,), activation=nn.Tanh), likelihood)
    problem = standard_units.to_standard_units(
        sampler.problem.on((x, 1e3 * y + 5e3)), Settings().start
    )
    assert problem.units is not None
    assert problem.units.y is not None
    own = problem.likelihood.own_parameter
    assert own is not None
    size = problem.units.y.scale[0]
    assert own[1] == problem.prior[f"likelihood.log_{own[0]}"]
    assert own[1].scale == pytest.approx(1e3 / size)  # type: ignore[attr-defined]
    # The same density, but for the constant of the units.
    inside = {k: p[:1] for k, p in sampler.init().params.items()}
    outside = problem.units.given(inside)
    losses = [
        p.likelihood.log_loss(p.network.call({k: v[0] for k, v in w.items()}, p.rows()[0]),
                              p.rows()[1], {})
        for p, w in ((problem, inside), (problem.user, outside))
    ]  # fmt: skip
    torch.testing.assert_close(losses[0] + 2 * math.log(size), losses[1], rtol=1e-3, atol=1e-3)
    back = Units.from_config({"units": problem.units.as_dict()})
    assert back is not None
    for name, value in back.standard(outside).items():
        torch.testing.assert_close(value, inside[name], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("network", [lambda: models.mlp(2, 1, (4,)), Plain])
def test_networks_and_files(network: object, tmp_path: Path) -> None:
    """Networks are handed out without the column; a file has the prior."""
    model = network()  # type: ignore[operator]
    x, y = rows("gaussian")
    sampler = Langevin(model, likelihoods.Gaussian(priors.Gamma(shape=2.0, rate=4.0)), chains=2,
                       step_size=1e-3, prior={"*": priors.Gaussian(1.0)})  # fmt: skip
    found = sampler.sample((x, y), steps=20, thin=10, progress=False)
    one = found.network(1, 0)
    assert one(x).shape == model(x).shape
    assert list(dict(one.named_parameters())) == list(dict(model.named_parameters()))
    said = found.predict(x)
    torch.testing.assert_close(said.samples[found.draws].reshape(-1), one(x).reshape(-1))
    assert said.mean.shape == (12, 1)
    assert said.aleatoric is not None
    found.save(tmp_path / "posterior")
    again = Posterior.load(tmp_path / "posterior", model)
    assert again.likelihood == found.likelihood
    torch.testing.assert_close(again.predict(x).mean, said.mean)


@pytest.mark.parametrize("kind", ["gaussian", "student", "counts"])
def test_a_student_learns_without_the_column(kind: str) -> None:
    x, y = rows(kind)
    network = models.mlp(2, 1, (4,), activation=nn.Tanh)
    found = Langevin(network, KINDS[kind][0], chains=2, step_size=1e-3).sample(
        (x, y), steps=20, thin=10, progress=False
    )
    student = found.distill(x, steps=3, calibrated=False)
    assert student(x).shape == (12, 1)


def test_refusals() -> None:
    with pytest.raises(ValueError, match=r"sigma must be .* got Gaussian"):
        likelihoods.Gaussian(sigma=priors.Gaussian(1.0))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="all chains share"):
        likelihoods.StudentT(scale=priors.HalfNormal(torch.ones(2)))
    with pytest.raises(TypeError, match=r"sigma must be a prior .* got 1.0"):
        likelihoods.HeteroscedasticGaussian(1.0)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="noise is of one size"):
        likelihoods.Scaled(likelihoods.Gaussian(HALF), (1.0, 2.0))
    model = Plain()
    model.likelihood = nn.Identity()
    with pytest.raises(ValueError, match="another name"):
        Langevin(model, likelihoods.Gaussian(HALF))
