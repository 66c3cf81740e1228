"""Data of unusual size: the run has them in standard units, and everybody else in their own."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from natural_langevin import Langevin, Posterior, likelihoods, models, priors
from natural_langevin.posterior.plan import Plan
from natural_langevin.posterior.units import Columns, Units, in_standard_units
from natural_langevin.recipe import rules as recipe
from natural_langevin.recipe.settings import Trial
from natural_langevin.run.problem import standard_units
from short_recipe import SHORT, USUAL, changed, shorten
from short_unit_runs import RUN, network, rows, sampled

SHORT_WAY = changed(SHORT, descent={"rounds": (20,)}, prior={"eager": Trial(8, 1, 4, folds=3)})


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """A short way down: what is compared has gone the same one."""
    shorten(monkeypatch, SHORT_WAY)


def standard(values: Tensor) -> Tensor:
    wide = values.double()
    return ((wide - wide.mean(0)) / wide.std(0, correction=0)).float()


LEARNED = likelihoods.Gaussian("rmse")
#: likelihood, its twin in standard units, numbers of a target, outputs
KINDS = {
    "learned": (LEARNED, lambda s: LEARNED, 1, 1),
    "given": (likelihoods.Gaussian(3e4), lambda s: likelihoods.Gaussian(3e4 / s), 1, 1),
    "heteroscedastic": (
        likelihoods.HeteroscedasticGaussian(),
        lambda s: likelihoods.HeteroscedasticGaussian(),
        1,
        2,
    ),
    "several": (LEARNED, lambda s: LEARNED, 2, 2),
    "several, heteroscedastic": (
        likelihoods.HeteroscedasticGaussian(),
        lambda s: likelihoods.HeteroscedasticGaussian(),
        2,
        4,
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_run_is_that_of_data_standardised_by_hand(kind: str) -> None:
    """Inputs and targets of strange sizes: the draws are those of the standardised data, and what
    they say is in the given units. A column of usual size stays as it is."""
    own, twin, numbers, outputs = KINDS[kind]
    x, y = rows(numbers=numbers)
    wide_x = x * torch.tensor([1.0, 1e3, 1e-3]) + torch.tensor([0.0, 5e3, 0.0])
    wide_y = y * torch.tensor([1e5, 1e-3][:numbers]) + torch.tensor([5e5, 3.0][:numbers])
    scale = wide_y.double().std(0, correction=0)
    location = wide_y.double().mean(0)
    _, found = sampled(wide_x, wide_y, own, network(outputs))
    by_hand = torch.cat([wide_x[:, :1], standard(wide_x)[:, 1:]], 1)
    _, plain = sampled(by_hand, standard(wide_y), twin(float(scale[0])), network(outputs))
    assert "units" in found.config
    assert "units" not in plain.config
    inside = in_standard_units(found)[0]
    for name, value in plain.samples.items():
        torch.testing.assert_close(inside.samples[name], value, atol=2e-3, rtol=2e-3)
    expected = plain.predict(by_hand).mean.double() * scale + location
    apart = (found.predict(wide_x).mean - expected) / scale
    assert float(apart.abs().max()) < 5e-3
    # A network that is handed out is one of the given units, by itself.
    one, other = found.network(1, 3)(wide_x), plain.network(1, 3)(by_hand)
    apart = (one[:, :numbers] - location - scale * other[:, :numbers]) / scale
    assert float(apart.detach().abs().max()) < 5e-3
    shift = float(scale.log().sum())
    scores = found.evaluate(wide_x, wide_y), plain.evaluate(by_hand, standard(wide_y))
    assert scores[0].nll == pytest.approx(scores[1].nll + shift, abs=5e-3)
    torch.testing.assert_close(
        found.log_likelihood(wide_x, wide_y),
        plain.log_likelihood(by_hand, standard(wide_y)) - shift,
        atol=2e-2, rtol=1e-3,
    )  # fmt: skip
    torch.testing.assert_close(found.trace[:, 1:], plain.trace[:, 1:] + shift, atol=1e-2, rtol=1e-3)
    if plain.sigma is not None and found.sigma is not None:
        wanted = plain.sigma.double().reshape(2, 1) * scale
        torch.testing.assert_close(found.sigma.double().reshape(2, -1), wanted, rtol=1e-3, atol=0.0)


def test_a_width_that_expects_outliers_has_units_that_know_none() -> None:
    x, y = rows()
    y = 1e3 + 20 * y
    y[7] = 1e7
    _, found = sampled(x, y, likelihoods.StudentT(), network(), compile=False)
    units = Units.from_config(found.config)
    assert units is not None
    assert units.y is not None
    assert 10 < units.y.scale[0] < 40
    assert found.sigma is not None
    assert bool((found.sigma < 1e4).all())


def test_within_usual_sizes_nothing_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = rows()
    _, usual = sampled(3 * x + 1, 4 * y - 2, LEARNED, network())
    monkeypatch.setattr(standard_units, "to_standard_units", lambda problem, _: problem)
    _, before = sampled(3 * x + 1, 4 * y - 2, LEARNED, network())
    assert "units" not in usual.config
    assert all(torch.equal(usual.samples[k], v) for k, v in before.samples.items())


@pytest.mark.parametrize(
    "options",
    [{"prior": priors.Gaussian(1.0)}, {"init": "model"}, {"init": "fan_in"}, {"step_size": 1e-3}],
    ids=["prior", "model", "fan_in", "step size"],
)
def test_whoever_says_something_of_the_weights_keeps_their_units(
    options: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    x, y = rows()
    _, found = sampled(x, 1e5 * y, LEARNED, network(), **options)
    assert "units" not in found.config
    assert ("targets y are of size" in caplog.text) == (options.get("init") != "model")


def test_a_network_that_has_learned_keeps_its_units() -> None:
    x, y = rows()
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), 0.05)
    for _ in range(200):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
    last: Any = model[-1]
    with torch.no_grad():
        last.weight *= 1e4
        last.bias *= 1e4
    _, found = sampled(x, 1e4 * y, LEARNED, model)
    assert "units" not in found.config


class Net(nn.Module):
    """As people write it, with layers in an order of its own."""

    def __init__(self, end: str) -> None:
        super().__init__()
        self.head, self.body, self.end = nn.Linear(6, 1), nn.Linear(3, 6), end

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.head(torch.tanh(self.body(x)))
        return {"squeeze": found.squeeze(-1), "relu": found.relu(), "skip": found + x[:, :1]}[
            self.end
        ]


@pytest.mark.parametrize(
    ("end", "layers"),
    [("squeeze", ("body", "head")), ("relu", ("body", None)), ("skip", (None, None))],
)
def test_layers_are_taken_where_the_network_agrees(
    end: str, layers: tuple[str | None, str | None], caplog: pytest.LogCaptureFixture
) -> None:
    """After a ReLU, targets have no other units; with x added behind the last layer, x has none,
    and neither have targets."""
    torch.manual_seed(0)
    x, y = rows()
    target = 1e4 * y if end != "squeeze" else 1e4 * y[:, 0]
    _, found = sampled(100 * x, target, LEARNED, Net(end), compile=False)
    units = Units.from_config(found.config) or Units()
    assert (units.x and units.x.layer, units.y and units.y.layer) == layers
    assert ("inputs x are of size" in caplog.text) == (layers[0] is None)
    assert ("targets y are of size" in caplog.text) == (layers[1] is None)
    assert (found.plan.units is None) == (layers == (None, None))


@pytest.mark.parametrize("bias", [True, False])
def test_classes_of_large_inputs(bias: bool) -> None:
    x, y = rows(39)
    labels = (y[:, 0] > 0).long()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 6, bias=bias), nn.Tanh(), nn.Linear(6, 2))
    _, found = sampled(1e3 * x, labels, likelihoods.Categorical(), model)
    units = Units.from_config(found.config)
    assert units is not None
    assert units.y is None
    assert units.x is not None
    assert any(units.x.location) == bias
    _, plain = sampled(units.x.standard(1e3 * x), labels, likelihoods.Categorical(), model)
    torch.testing.assert_close(
        found.predict(1e3 * x).mean, plain.predict(units.x.standard(1e3 * x)).mean,
        atol=1e-3, rtol=1e-3,
    )  # fmt: skip


def test_pixels_have_one_size_and_no_location() -> None:
    generator = torch.Generator().manual_seed(0)
    x = 255 * torch.rand(30, 1, 6, 6, generator=generator)
    y = (x[:, 0, :3].mean((1, 2)) > 127).long()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(72, 2))
    sampler = Langevin(model, likelihoods.Categorical(), chains=2, compile=False)
    found = sampler.sample((x, y), steps=8, burn_in=2, thin=2, progress=False)
    units = Units.from_config(found.config)
    assert units is not None
    assert units.x == Columns("0", (0.0,), units.x.scale)  # type: ignore[union-attr]
    inside = in_standard_units(found)[0]
    here = torch.stack([inside.network(c, 0)(units.x.standard(x)) for c in (0, 1)])  # type: ignore[union-attr]
    there = torch.stack([found.network(c, 0)(x) for c in (0, 1)])
    torch.testing.assert_close(here, there, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("numbers", [pytest.param(1, marks=pytest.mark.thorough), 2])
def test_files_serve_the_given_units(tmp_path: Path, numbers: int) -> None:
    x, y = rows(numbers=numbers)
    y = y * torch.tensor([1e5, 1e-3][:numbers]) + torch.tensor([5e5, 3.0][:numbers])
    _, found = sampled(x, y, LEARNED, network(numbers))
    found.save(tmp_path / "saved")
    loaded = Posterior.load(tmp_path / "saved", network(numbers))
    assert loaded.likelihood == found.likelihood
    assert loaded.config["units"] == found.config["units"] or Units.from_config(
        loaded.config
    ) == Units.from_config(found.config)
    assert torch.equal(loaded.predict(x).mean, found.predict(x).mean)
    assert loaded.evaluate(x, y).nll == pytest.approx(found.evaluate(x, y).nll)
    assert torch.equal(loaded.sigma, found.sigma)  # type: ignore[arg-type]
    found.export(tmp_path / "served.pt2", x)
    mean, total, _ = torch.export.load(tmp_path / "served.pt2").module()(x)
    said = found.predict(x)
    torch.testing.assert_close(mean, said.mean, rtol=1e-4, atol=0.0)
    torch.testing.assert_close(total, said.total, rtol=1e-2, atol=0.0)


@pytest.mark.parametrize("numbers", [1, 2])
def test_densities_and_diagnoses_know_the_units(numbers: int) -> None:
    x, y = rows(numbers=numbers)
    y = y * torch.tensor([1e5, 1e-3][:numbers]) + torch.tensor([5e5, 3.0][:numbers])
    sampler, found = sampled(100 * x, y, LEARNED, network(numbers))
    inside, units = in_standard_units(found)
    data = units.data(100 * x, y)
    assert found.prior is not None
    wanted = inside.log_density(data) - len(x) * units.shift
    torch.testing.assert_close(found.log_density((100 * x, y)), wanted, atol=0.5, rtol=1e-3)
    heat = [
        one.diagnose(some[0], data=some).configurational.temperature.value
        for one, some in ((found, (100 * x, y)), (inside, data))
    ]
    assert heat[0] == pytest.approx(heat[1], rel=1e-3)
    groups = found.to_arviz(data=(100 * x, y))
    drawn = torch.tensor(groups.posterior_predictive["y"].to_numpy()).double().flatten(0, 1)
    spread = (drawn.mean(0) - y).abs().mean(0) / y.double().std(0)
    assert bool((spread < 1.5).all()), "draws of targets are in the given units"
    # The same difference of log densities from the sampler, at the noise that it begins with.
    two = [{k: v[0, d] for k, v in found.samples.items()} for d in (0, 5)]
    ours = [float(sampler.log_density(w, (100 * x, y), plan=found.plan)) for w in two]
    prior = recipe.prior(found.plan.prior_scale)
    twin = Langevin(network(numbers), units.standard_likelihood(LEARNED), prior=prior, chains=2)
    twins = [{k: v[0, d] for k, v in inside.samples.items()} for d in (0, 5)]
    theirs = [float(twin.log_density(w, data)) for w in twins]
    assert ours[0] - ours[1] == pytest.approx(theirs[0] - theirs[1], abs=0.1)
    assert math.isfinite(
        sampler.effective_temperature((100 * x, y), posterior=found, steps=10).temperature.value
    )


def test_a_fresh_sampler_reads_a_posterior_in_its_units() -> None:
    """The temperature at the end of a run is the same, whoever measures it."""
    x, y = rows()
    data = 100 * x, 1e5 * y + 5e5
    sampler, found = sampled(*data, LEARNED, network())
    fresh = Langevin(network(), LEARNED, chains=2)
    heat, own = (
        one.effective_temperature(data, posterior=found, steps=10).temperature.value
        for one in (fresh, sampler)
    )
    assert heat == pytest.approx(own, rel=1e-4)
    weights = {k: v[0, 0] for k, v in found.samples.items()}
    with pytest.raises(ValueError, match=r"standard units, which the run.*posterior.log"):
        fresh.log_density(weights, data)
    assert math.isfinite(float(fresh.log_density(weights, data, plan=found.plan)))
    # Data of a usual size, or a prior of one's own, are taken as they are.
    assert math.isfinite(float(fresh.log_density(weights, (x, y))))
    own = Langevin(network(), LEARNED, prior=priors.Gaussian(1.0), chains=2)
    assert math.isfinite(float(own.log_density(weights, data)))


class TwoHeads(nn.Module):
    """A number and a class, by name."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.number, self.kind = nn.Linear(3, 4), nn.Linear(4, 1), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        h = torch.tanh(self.body(x))
        return {"number": self.number(h), "kind": self.kind(h)}


@pytest.mark.parametrize("size", [pytest.param(1.0, marks=pytest.mark.thorough), 1e4])
def test_outputs_that_are_no_tensor_are_left_to_their_loss(size: float) -> None:
    def loss(outputs: dict[str, Tensor], y: Tensor) -> Tensor:
        kind = nn.functional.cross_entropy(outputs["kind"], y[:, 1].long(), reduction="none")
        return (outputs["number"][:, 0] - y[:, 0]).square() + kind

    x, y = rows()
    y = torch.cat([y, (y > 0).float()], 1)
    found = sampled(size * x, y, likelihoods.LogLoss(loss), TwoHeads())[1]
    assert "units" not in found.config
    assert found.draws == 8


def test_a_run_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    x, y = rows()
    whole = sampled(x, 1e5 * y, LEARNED, network())[1]
    for _ in range(2):
        sampler = Langevin(network(), LEARNED, chains=2)
        again = sampler.sample((x, 1e5 * y), **RUN, checkpoint=tmp_path / "run", every=16)
    assert all(torch.equal(whole.samples[k], v) for k, v in again.samples.items())


def test_a_callback_sees_losses_in_the_given_units() -> None:
    x, y = rows()
    seen: list[Any] = []
    sampler = Langevin(network(), LEARNED, chains=2)
    found = sampler.sample((x, 1e5 * y), **RUN, callback=seen.append)
    assert torch.equal(seen[-1].loss.double(), found.trace[-1, 1:]) or torch.allclose(
        seen[-1].loss.double(), found.trace[-1, 1:], atol=1e-3
    )
    assert float(seen[-1].loss.min()) > 10


def test_pure_defaults_beat_the_blind_guess() -> None:
    """Two numbers of unequal sizes, inputs of unequal sizes: all of it left open."""
    settings = changed(
        descent={"rounds": (60,)}, pilot={"steps": (1, 20)}, end={"first_steps": 400},
        length={"fewest": 800, "most": 1600},
        cost={"usual": replace(USUAL.cost.usual, relaxations=1)},
    )  # fmt: skip
    x, y = rows(400, 2)
    x = x * torch.tensor([1.0, 1e3, 1e-3])
    y = y * torch.tensor([1e5, 1e-3]) + torch.tensor([5e5, 3.0])
    model = models.mlp(3, 2, (16,), activation=nn.Tanh)
    sampler = Langevin(model, LEARNED, chains=2, recipe=settings)
    found = sampler.sample((x[:200], y[:200]), progress=False)
    scores = found.evaluate(x[200:], y[200:])
    assert scores.nll < scores.blind_nll - 0.5  # type: ignore[operator]


@pytest.mark.parametrize("seed", range(5))
def test_a_network_that_follows_a_large_column_by_chance_has_not_learned(seed: int) -> None:
    x, y = rows()
    x[:, 0] *= 100
    sampler = Langevin(models.mlp(3, 1, (8,), activation=nn.Tanh, seed=seed), LEARNED, chains=2)
    assert not standard_units._has_learned(sampler.problem, x, y, USUAL.start)


@pytest.mark.parametrize("size", [1.0, 100.0])
def test_wrong_data_are_refused_by_name_whatever_their_size(size: float) -> None:
    x, y = rows(count=60)
    classes = Langevin(models.mlp(3, 3, (4,)), likelihoods.Categorical())
    with pytest.raises(ValueError, match="class indices"):
        classes.sample((size * x, torch.arange(60) % 3 + 1), **RUN)
    with pytest.raises(ValueError, match="50"):
        Langevin(network(), LEARNED).sample((size * x, y[:50]), **RUN)


def test_a_rare_one_among_zeros_stays_a_one() -> None:
    x, y = rows()
    x[:, 0] = 0.0
    x[7, 0] = 1.0
    x[:, 1] *= 100
    units = standard_units.find(Langevin(network(), LEARNED).problem.on((x, y)), USUAL.start)
    assert units is not None
    assert units.x is not None
    assert (units.x.location[0], units.x.scale[0]) == (0.0, 1.0)
    assert units.x.scale[1] > 50


def test_no_column_is_blown_up_by_what_is_rare_in_it() -> None:
    """A pixel that is almost never on stays as it is; one cell far out does not shrink, nor make a
    large number of, what a large column else says."""
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(2000, 3, generator=generator)
    x[:, 1] = 0.0
    x[7, 1] = 0.004  # once in 2,000 rows
    x[:, 2] = 1000 * torch.randn(2000, generator=generator)
    x[5, 2] = 1e7
    problem = Langevin(network(), LEARNED).problem.on((x, x[:, :1]))
    units = standard_units.find(problem, USUAL.start)
    assert units is not None
    assert units.x is not None
    assert units.x.scale[:2] == (1.0, 1.0)
    assert units.x.location[:2] == (0.0, 0.0)
    standard = units.data(x, x[:, :1])[0]
    assert float(standard.abs().max()) <= standard_units.RARE + 1e-3


def test_the_temperature_is_asked_of_a_dataset_too_and_a_refused_call_changes_nothing() -> None:
    x, y = rows()
    sampler, posterior = sampled(100 * x, y, LEARNED, network())
    data = 100 * x, y
    weights = {k: v[0, -1] for k, v in posterior.samples.items()}
    density = sampler.log_density(weights, data, plan=posterior.plan)
    one, other = (
        sampler.effective_temperature(d, posterior=posterior, steps=10)
        for d in (data, torch.utils.data.TensorDataset(*data))
    )
    assert one.temperature == other.temperature
    with pytest.raises(ValueError, match="steps"):
        sampler.sample(data, steps=-1)
    assert sampler.log_density(weights, data, plan=posterior.plan) == density


def test_several_targets_are_loaded_with_the_users_own_likelihood(tmp_path: Path) -> None:
    x, y = rows(numbers=2)
    _, posterior = sampled(x, y * torch.tensor([1e5, 1.0]), LEARNED, network(2))
    posterior.save(tmp_path / "saved")
    loaded = Posterior.load(tmp_path / "saved", network(2), likelihood=LEARNED)
    assert loaded.sigma is not None
    torch.testing.assert_close(loaded.sigma, posterior.sigma)


@pytest.mark.parametrize(("data", "weights", "far"), [
    (torch.float32, torch.float32, 1e6),
    (torch.float64, torch.float32, 1e6),
    (torch.float64, torch.float64, 1e9),
])  # fmt: skip
def test_what_varies_is_a_matter_of_the_dtype(
    data: torch.dtype, weights: torch.dtype, far: float
) -> None:
    """Targets of 1e6 +- 1 vary in float32, and some of 1e9 +- 1 in float64: they are standardised,
    and the run predicts them; 1e9 +- 1 does not in weights of float32."""
    x, y = (t.to(weights) for t in rows(200))
    y = (far + y.double() / y.double().std()).to(data)
    sampler = Langevin(network().to(weights), LEARNED, chains=2)
    found = sampler.sample((x, y), **RUN)
    assert found.config["units"]["y"]["scale"][0] == pytest.approx(1, abs=0.05)
    left = found.predict(x).mean.double() - y.double()
    assert float(left.std()) < 0.9


def test_rounding_alone_is_no_variation() -> None:
    x, y = rows()
    y = 1e9 + y.double() / y.double().std()
    units = standard_units.find(Langevin(network(), LEARNED).problem.on((x, y)), USUAL.start)
    assert units is None or units.y is None or units.y.scale[0] > 1e8


def test_a_cell_far_out_does_not_flatten_its_column(caplog: pytest.LogCaptureFixture) -> None:
    """The run takes it as ten deviations of the others, says so, and the plan can leave it."""
    x, y = rows(200)
    x[7, 0], x[9, 1] = 1e8, 50.0
    sampler = Langevin(network(), LEARNED, chains=2)
    plan = replace(sampler.plan((x, y)), steps=40, burn_in=8, thin=4)
    assert "column 0 of the inputs x has cells more than 1000 standard deviations" in caplog.text
    units = Plan.from_json(plan.to_json()).units
    assert units is not None
    assert units.x is not None
    standard = units.data(x, y)[0]
    assert torch.equal(standard[10:], x[10:])  # of usual size but for these cells
    assert float(standard[7, 0]) == pytest.approx(10 * float(x[10:, 0].std()), rel=0.1)
    assert float(standard[9, 1]) == 50.0
    found = sampler.sample((x, y), plan=plan, progress=False)
    assert found.config["units"]["x"]["far"] == units.x.far
    wild = sampler.sample((x, y), plan=replace(plan, units=None), progress=False)
    assert wild.config.get("units") is None
