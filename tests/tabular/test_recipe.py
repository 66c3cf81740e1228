"""The cross-validation of the estimators: folds as chains, weights, sharpness."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from scipy import stats
from sklearn.datasets import load_iris, make_blobs, make_friedman1
from sklearn.utils.estimator_checks import estimator_checks_generator
from torch.testing import assert_close

from natural_langevin.run.loop import DivergenceError
from natural_langevin.sklearn import NaturalLangevinClassifier, NaturalLangevinRegressor
from natural_langevin.tabular import recipe
from natural_langevin.tabular import settings as settings_module
from natural_langevin.tabular.crossvalidation import TableFit, split
from natural_langevin.tabular.inputs import plain_inputs
from natural_langevin.tabular.outcome import Outcome
from natural_langevin.tabular.predictive import Networks, Predictive
from natural_langevin.tabular.recipe import Learned, learn
from natural_langevin.tabular.settings import Settings
from natural_langevin.tabular.views import View
from natural_langevin.tabular.weighing import HeldOut, Weighed, weigh

SMALL = {"hidden_layer_sizes": (8,), "steps": 30, "chains": 2, "random_state": 0}


@pytest.mark.parametrize("count", [12, 61, 6000])
def test_folds_are_apart_of_one_size_and_hold_every_class(count):
    labels = np.arange(count) % 3
    folds = split(count, 4, 0, labels)
    assert len(folds) == len(split(count, 4, 0, None)) == (2 if count == 6000 else 4)
    assert {len(fold) for fold in folds} == {min(count // 4, 500)}
    assert len(torch.cat(folds).unique()) == len(folds) * len(folds[0])
    for fold in folds:
        share = np.bincount(labels[fold], minlength=3) / len(fold)
        assert np.abs(share - 1 / 3).max() <= 1.01 / len(fold) + 0.07 * (count == 6000)


CLASSES = Outcome("classification", "categorical", classes=3)


def table_fit(**changes) -> tuple[TableFit, View]:
    x, labels = make_blobs(40, 2, centers=3, random_state=0)
    settings = Settings(
        hidden=(6,), steps=30, chains=2, prior_variance=1.0, step_size=0.003
    ).of_rows(40)  # fmt: skip
    folds = split(40, 4, 0, labels)
    given = {"x": torch.as_tensor(x / 5), "y": torch.as_tensor(labels)} | changes
    fit = TableFit(settings=settings, folds=folds, **given)
    return fit, View(CLASSES, plain_inputs(2, settings.dtype), settings)


@pytest.mark.parametrize("counts", [None, torch.arange(40) % 3])
def test_held_out_rows_have_no_part_in_what_is_said_of_them(counts):
    """Other labels in fold 0: the same predictions of fold 0, and others of the rest. Rows that
    are repeated stay in their fold. The plan (step size, friction, batch: how chains move, and the
    prior's scale) is one for all folds, made on all rows."""
    here, view = table_fit(counts=counts)
    labels = here.y.clone()
    labels[here.folds[0]] = (labels[here.folds[0]] + 1) % 3
    plan = here.plan(view)
    found, other = (
        [said.outputs for said in fit.on_folds(view, plan).folds]
        for fit in (here, replace(here, y=labels))
    )
    assert found[0].shape[1:] == (10, 3)
    assert_close(other[0], found[0])
    assert not torch.allclose(other[1], found[1])


def test_a_view_that_diverges_is_left_out(monkeypatch):
    here, view = table_fit()
    on_folds = TableFit.on_folds

    def some_fail(self: TableFit, view: View, plan):
        if view.settings.layers == (3,):
            raise DivergenceError("for the test")
        return on_folds(self, view, plan)

    monkeypatch.setattr(TableFit, "on_folds", some_fail)
    trials = recipe.Trials(here)
    trials.run(view.with_layers(3))
    with pytest.raises(DivergenceError, match="smaller step_size"):
        _ = trials.best
    trials.run(view)
    assert trials.best.view is view
    assert trials.weighed()[0] == [trials.best]


def test_views_that_predict_best_together_are_mixed():
    """y ~ N(0, 1) or, in every second row, N(5, 1). Two views know one half each; one knows nothing
    and one speaks of logarithms: neither is in the mixture."""
    trials = recipe.Trials(table_fit()[0])
    rng = np.random.default_rng(0)
    row = np.arange(400)[:, None]
    half, early = row % 2, row < 200
    trials.y = torch.tensor(5.0 * half + rng.normal(size=(400, 1)))
    one = Outcome("regression", "constant")
    means = {
        1: 5.0 * half * early, 2: 5.0 * half * ~early, 3: np.full((400, 1), -1e3), 4: 5.0 * half
    }  # fmt: skip
    for k, mean in means.items():
        settings = Settings(hidden=(k,)).of_rows(40)
        view = View(replace(one, log=k == 4), plain_inputs(2), settings)
        said = [Networks(torch.tensor(mean)[None], torch.tensor([1.0]))]
        trials._done.append(recipe.Trial(view, None, said, ({}, {})))
        trials._nll.append(torch.full((400,), float(k)))  # the first is best
    chosen, weighed = trials.weighed()
    assert {trial.view.settings.layers[0] for trial in chosen} == {1, 2}
    assert min(weighed.weight) > 0.3
    assert sum(weighed.weight) == pytest.approx(1)


def test_weights_and_scale_of_classes():
    """Candidate 0 says the truth, to the power 2; candidate 1 nothing at all."""
    generator = np.random.default_rng(0)
    truth = generator.dirichlet(np.ones(3), size=4000)
    y = torch.tensor([generator.choice(3, p=p) for p in truth])
    sharp = truth**2 / (truth**2).sum(1, keepdims=True)
    views = [
        HeldOut(CLASSES, [
            Networks(torch.tensor(p[part]).log()[None], None)
            for part in (slice(1000), slice(1000, 4000))
        ])
        for p in (sharp, np.full_like(truth, 1 / 3))
    ]  # fmt: skip
    alone = weigh(views[:1], y)
    assert alone.scale == pytest.approx(2, rel=0.1)
    assert alone.nll[0] == pytest.approx(-np.log(sharp[np.arange(4000), y]).mean())
    both = weigh(views, y)
    shares = [share for _, share in alone.scales]
    assert sum(shares) == pytest.approx(1)
    assert len(shares) < 6  # 4000 rows know the scale
    few = weigh([HeldOut(CLASSES, [Networks(views[0].folds[0].outputs[:, :20], None)])], y[:20])
    assert len(few.scales) > 20  # twenty do not
    assert 0.5 < both.weight[0] < 1  # some of the flat one makes the sharp one honest
    assert both.scale < alone.scale


def test_weights_and_scale_of_numbers():
    """y ~ N(m, 1). Candidate 0 knows m and says its noise is 0.7; candidate 1 has another m."""
    generator = np.random.default_rng(0)
    m = generator.normal(size=(3000, 1))
    y = torch.tensor(m + generator.normal(size=(3000, 1)))
    variance, outcome = torch.tensor([0.49]), Outcome("regression", "constant")
    means = torch.tensor(m), torch.tensor(m[::-1].copy())
    found = weigh([HeldOut(outcome, [Networks(mean[None], variance)]) for mean in means], y)
    assert found.weight[0] > 0.95
    variance = sum(share * (0.7 * factor) ** 2 for factor, share in found.factors[0])
    assert variance == pytest.approx(1, rel=0.05)
    assert found.scale > 1.2  # the geometric mean
    expected = -stats.norm.logpdf(y.numpy(), m, 0.7).mean()
    assert found.nll[0] == pytest.approx(expected)
    # How strange the rows are is uniform, as far as 3000 of them tell.
    assert stats.kstest(found.strangeness.numpy(), "uniform").pvalue > 1e-3


@pytest.mark.parametrize(("count", "surer"), [(12, False), (60, True)])
def test_few_rows_make_nothing_surer(count, surer):
    """Networks that are right and say three times the noise there is."""
    y = torch.tensor(np.random.default_rng(0).normal(size=(count, 1))) / 3
    said = Networks(torch.zeros(1, count, 1).double(), torch.tensor([1.0]))
    found = weigh([HeldOut(Outcome("regression", "constant"), [said])], y)
    assert (found.scale < 0.9) == surer
    assert found.scale < 1.001  # and nothing less sure


def test_predictions_are_the_weighted_mixture_of_the_posteriors():
    X, y = make_blobs(60, 3, centers=3, cluster_std=4, random_state=0)
    model = NaturalLangevinClassifier(**SMALL).fit(X, y)
    x = model.network_inputs(X)
    assert_allclose(x, (X - X.mean(0)) / X.std(0), rtol=1e-9)
    mixture = sum(
        w * p.predict(x).mean for w, p in zip(model.weights_, model.posteriors_, strict=True)
    )
    expected = sum(
        share * (mixture.log() / scale).softmax(1) for scale, share in model.learned_.scales
    )
    assert_allclose(model.predict_proba(X), expected, rtol=1e-9)
    assert model.weights_.sum() == pytest.approx(1)
    assert model.posterior_ is model.posteriors_[int(model.weights_.argmax())]
    assert [one["weight"] for one in model.choice_ if one["weight"]] == model.weights_.tolist()
    assert all(math.isfinite(one["nll"]) for one in model.choice_)
    assert model.reason_.startswith("classes, 1 hidden layer (100%, held-out NLL ")
    assert model.reason_.endswith("stacked by 60 held-out rows")


#: Of scikit-learn's checks (test_estimators runs all of them without folds): those that fit
#: again, few data, or store what was fitted.
CHECKS = (
    "check_dict_unchanged",
    "check_estimators_pickle",
    "check_fit2d_1feature",
    "check_fit2d_1sample",
    "check_fit_idempotent",
)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (NaturalLangevinClassifier, {}),
        pytest.param(NaturalLangevinRegressor, {"noise": "constant"}, marks=pytest.mark.thorough),
    ],
    ids=["classes", "numbers"],
)
def test_checks_of_scikit_learn_with_folds(kind, options):
    estimator = kind((8,), steps=10, chains=2, folds=2, **options)
    done = set()
    for instance, check in estimator_checks_generator(estimator):
        if (name := check.func.__name__) in CHECKS:
            check(instance)
            done.add(name)
    assert done == set(CHECKS)


def test_what_diverges_on_all_the_data_counts_no_more(monkeypatch, caplog):
    here, view = table_fit()
    other = view.with_layers()
    trials = [here.on_folds(one, here.plan(one)) for one in (view, other)]
    on_all_rows = TableFit.on_all_rows

    def some_fail(self: TableFit, trial, chains, **options):
        if not trial.view.settings.layers:
            raise DivergenceError("for the test")
        return on_all_rows(self, trial, chains, **options)

    monkeypatch.setattr(TableFit, "on_all_rows", some_fail)
    learned = recipe._on_all_rows(here, trials, Weighed([], [0.5, 0.5], [[[1.0, 1.0]]] * 2))
    assert [member.view for member in learned.members] == [view]
    assert learned.weights.tolist() == [1.0]
    assert "linear diverged on all the data, and is left out" in caplog.text
    with pytest.raises(DivergenceError):
        recipe._on_all_rows(here, trials[1:], Weighed([], [1.0], [[[1.0, 1.0]]]))


def test_few_rows_have_fewer_folds():
    X, y = make_blobs(8, 2, centers=2, random_state=0)
    model = NaturalLangevinClassifier(**SMALL).fit(X, y)
    assert "stacked by 8 held-out rows" in model.reason_


def test_by_default_nothing_is_chosen_by_hand():
    """Iris, with the defaults but for the number of steps."""
    X, y = load_iris(return_X_y=True)
    model = NaturalLangevinClassifier(steps=200, random_state=0).fit(X[::2], y[::2])
    assert [one["view"] for one in model.choice_] == ["classes, 1 hidden layer", "classes, linear"]
    assert model.score(X[1::2], y[1::2]) > 0.9


def test_classes_of_a_middling_number_of_rows_have_one_hidden_layer_or_two(monkeypatch):
    monkeypatch.setattr(settings_module, "DEEP_FROM", 40)
    monkeypatch.setattr(recipe, "DEEP_FROM", 40)
    x = torch.linspace(-1, 1, 60).double()[:, None]
    labels = (x[:, 0] > 0).long()
    short = Settings(steps=10, folds=2, chains=1, draws=2)
    found = recipe.learn(x, labels, "classification", short)
    tried = ["classes, 2 hidden layers", "classes, 1 hidden layer", "classes, linear"]
    assert [one["view"] for one in found.choice] == tried
    assert_allclose(found.probabilities(x).sum(1), 1)
    fixed = recipe.learn(x, labels, "classification", replace(short, hidden=(7,)))
    assert fixed.settings.layers == (7,)
    assert len(fixed.choice) == 1


def test_the_variance_of_a_layer_goes_by_its_inputs():
    settings = Settings(hidden=(7,), prior_variance="fan_in").of_rows(40)
    view = View(CLASSES, plain_inputs(5), settings)
    prior = view.sampler(chains=2, seed=0, num_data=10, device=None).problem.prior["0.weight"]
    w = torch.full((2, 7, 5), 2.0)
    assert_close(prior.gradient(w), -w / (3 / 5))


def mixture(outcome: Outcome, outputs, variance=None, weights=(0.25, 0.75), scale=1.0):
    outputs = torch.tensor(outputs, dtype=torch.float64)
    said = Networks(outputs, None if variance is None else torch.tensor(variance))
    return Predictive(outcome, said.law(outcome, scale), torch.tensor(weights), flat=True)


def test_a_normal_mixture_by_hand():
    """Weights 1/4 and 3/4 on N(0, 1) and N(2, 4), in units of 10 around 100."""
    outcome = Outcome("regression", "constant", mean=(100.0,), scale=(10.0,))
    found = mixture(outcome, [[[0.0]], [[2.0]]], variance=[1.0, 4.0])
    assert_allclose(found.mean, [115])
    assert_allclose(found.aleatoric, [100 * (0.25 + 3)])
    assert_allclose(found.epistemic, [100 * 0.25 * 0.75 * 4])
    parts = stats.norm([100, 120], [10, 20])
    weights = np.array([0.25, 0.75])
    assert_allclose(np.exp(found.log_prob([110.0])), weights @ parts.pdf(110))
    assert_allclose(found.cdf([110.0]), [weights @ parts.cdf(110)])
    assert_allclose(found.cdf(found.quantile(0.9)), [0.9])
    wide = mixture(outcome, [[[0.0]], [[2.0]]], variance=[1.0, 4.0], scale=2.0)
    assert_allclose(wide.aleatoric, 4 * found.aleatoric)


def test_a_logarithm_is_undone_exactly():
    """ln y ~ N(m, s^2): mean, variance, density (with the Jacobian) and quantiles of y. The noise
    is less than the targets' own spread: beyond it moments end somewhere (``_limited``)."""
    outcome = Outcome("regression", "varying", mean=(1.0,), scale=(0.5,), log=True)
    found = mixture(outcome, [[[0.4, np.log(0.36)]]], weights=(1.0,))
    law = stats.lognorm(s=0.3, scale=np.exp(1.2))
    assert_allclose([found.mean[0], found.variance[0]], [law.mean(), law.var()])
    assert_allclose(found.log_prob([4.0]), law.logpdf(4.0))
    assert_allclose(found.cdf([4.0]), law.cdf(4.0))
    assert_allclose(found.quantile(0.05), law.ppf(0.05))
    assert found.log_prob([-1.0])[0] == -np.inf
    assert found.cdf([-1.0])[0] == 0
    draws = found.sample(20_000)[:, 0]
    assert stats.kstest(draws, law.cdf).pvalue > 1e-3


def test_counts_by_hand():
    outcome = Outcome("count", "poisson")
    found = mixture(outcome, [[[np.log(2.0)]], [[np.log(6.0)]]])
    rates, weights = np.array([2.0, 6.0]), np.array([0.25, 0.75])
    assert_allclose(found.mean, [5])
    assert_allclose(found.variance, [5 + 0.25 * 0.75 * 16])
    assert_allclose(np.exp(found.log_prob([3.0])), [weights @ stats.poisson(rates).pmf(3)])
    cumulative = weights @ stats.poisson(rates[:, None]).cdf(np.arange(30))
    assert found.quantile(0.9)[0] == np.argmax(cumulative >= 0.9)
    draws = found.sample(20_000)[:, 0]
    assert draws.mean() == pytest.approx(5, abs=4 * np.sqrt(8 / 20_000))
    more = mixture(Outcome("count", "overdispersed"), [[[1.0, 0.0]]], weights=(1.0,))
    draws, m = more.sample(20_000)[:, 0], np.e
    assert draws.mean() == pytest.approx(m, abs=4 * np.sqrt((m + m**2) / 20_000))
    assert more.variance[0] == pytest.approx(m + m**2)


QUICK = Settings(hidden=(8,), steps=400, chains=2, folds=2, seed=0)


def test_noise_that_depends_on_the_inputs_is_noticed():
    rng = np.random.default_rng(0)
    x = torch.tensor(rng.uniform(-1.7, 1.7, size=(400, 1)))
    spread = torch.exp(x)
    y = 100 + 10 * (x + spread * torch.tensor(rng.normal(size=(400, 1))))
    learned = learn(x, y, "regression", replace(QUICK, steps=600))
    assert learned.outcome.noise == "varying"
    assert learned.reason.startswith("noise that depends on the inputs")
    ends = torch.tensor([[-1.5], [1.5]]).double()
    small, large = learned.predictive(ends).std
    assert large > 5 * small  # in truth e^3 = 20 times
    even = learn(x, y, "regression", replace(QUICK, noise="constant"))
    assert even.outcome.noise == "constant"


def test_a_skewed_positive_target_is_sampled_as_its_logarithm():
    rng = np.random.default_rng(0)
    x = torch.tensor(rng.normal(size=(300, 1)))
    y = torch.exp(1 + x + 0.3 * torch.tensor(rng.normal(size=(300, 1))))
    learned = learn(x, y, "regression", QUICK)
    assert learned.outcome.log
    found = learned.predictive(x)
    assert (found.quantile(0.05) > 0).all()
    median, truth = found.quantile(0.5), np.exp(1 + x[:, 0].numpy())
    assert np.median(np.abs(np.log(median / truth))) < 0.1  # a third of the noise


def test_counts_and_ordered_classes_are_learned():
    rng = np.random.default_rng(0)
    x = torch.tensor(rng.normal(size=(300, 1)))
    counts = torch.tensor(rng.poisson(np.exp(3 + 0.5 * x.numpy())).astype(float))
    learned = learn(x, counts, "count", replace(QUICK, noise="poisson"))
    found = learned.predictive(torch.tensor([[-1.0], [1.0]]).double())
    assert_allclose(found.mean, np.exp([2.5, 3.5]), rtol=0.15)
    latent = x[:, 0] + 0.3 * torch.tensor(rng.normal(size=300))
    levels = torch.bucketize(latent, torch.tensor([-1.0, 0.0, 1.0]).double())
    ordinal = learn(x, levels, "ordinal", replace(QUICK, steps=60), classes=4)
    p = ordinal.probabilities(torch.tensor([[-2.0], [2.0]]).double())
    assert p.argmax(1).tolist() == [0, 3]
    assert_close(p.sum(1), torch.ones(2).double())


def test_what_was_learned_comes_back_from_its_folder(tmp_path):
    x = torch.linspace(-1, 1, 40).double()[:, None]
    learned = learn(x, 3 * x + 100, "regression", replace(QUICK, steps=40))
    learned.save(tmp_path / "l")
    again = Learned.load(tmp_path / "l")
    assert_allclose(again.predictive(x).mean, learned.predictive(x).mean)
    assert_allclose(again.predictive(x).std, learned.predictive(x).std)
    assert again.reason == learned.reason
    assert again.conformal(0.9) == pytest.approx(learned.conformal(0.9))


def test_conformal_intervals_hold_their_share_of_new_rows():
    """With noise, so that folds of two thirds of the rows err as the fit of all does: without, they
    err more, and intervals hold more than their share."""
    X, y = make_friedman1(900, noise=3.0, random_state=0)
    model = NaturalLangevinRegressor((8,), steps=100, chains=2, folds=3, random_state=0)
    model.fit(X[:300], y[:300])
    low, high = model.predict_interval(X[300:], 0.8, conformal=True)
    inside = ((low <= y[300:]) & (y[300:] <= high)).mean()
    # 300 held-out rows and 600 new ones: three standard errors of both.
    assert inside == pytest.approx(0.8, abs=3 * np.sqrt(0.16 * (1 / 300 + 1 / 600)))
