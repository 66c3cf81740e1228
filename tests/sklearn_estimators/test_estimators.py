"""The scikit-learn estimators: its own checks, and what they do not look at."""

from __future__ import annotations

import dataclasses
import pickle
from collections import defaultdict

import numpy as np
import pandas as pd
import pytest
import scipy.stats
from numpy.testing import assert_allclose
from scipy import sparse
from sklearn.base import clone
from sklearn.datasets import make_blobs, make_friedman1
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler
from sklearn.utils.class_weight import compute_sample_weight
from sklearn.utils.estimator_checks import estimator_checks_generator

from natural_langevin import Posterior, priors
from natural_langevin.sklearn import NaturalLangevinClassifier, NaturalLangevinRegressor
from short_recipe import shorten
from tables import prices, run

#: Small enough for the hundreds of fits of the checks; steps are what a fit's time goes by.
FAST = {"hidden_layer_sizes": (16,), "steps": 80, "chains": 2, "step_size": 0.005, "folds": 0}


#: Weighted rows are repeated rows, one after another; the check has them in another order, and
#: which rows the way down holds out goes by the order. The posterior is the same: see
#: test_weighted_and_repeated_rows_are_one_posterior_whatever_their_order.
BY_ORDER = {
    f"check_sample_weight_equivalence_on_{kind}_data": "draws depend on the order of rows"
    for kind in ("dense", "sparse")
}


def checks_in_turns():
    """Checks of one kind of estimator, and those of both with one of the two in turns: what they
    look at is ``sklearn/base.py``. The other's turn is ``thorough``."""
    found = defaultdict(list)
    for kind in (NaturalLangevinClassifier, NaturalLangevinRegressor):
        options = {"expected_failed_checks": BY_ORDER, "mark": "xfail"}
        for one in estimator_checks_generator(kind(**FAST), **options):
            case = one if hasattr(one, "marks") else pytest.param(*one)
            check = case.values[1]
            words = [check.func.__name__, *map(str, check.keywords.values())]
            found["-".join(words)].append((kind.__name__, case))
    turn = 0
    for check, cases in found.items():
        turn += len(cases) > 1
        for place, (kind, case) in enumerate(cases):
            later = [pytest.mark.thorough] * (len(cases) > 1 and place == turn % 2)
            yield pytest.param(*case.values, id=f"{kind}-{check}", marks=[*case.marks, *later])


@pytest.mark.parametrize(("estimator", "check"), list(checks_in_turns()))
def test_every_check_of_scikit_learn(estimator, check, monkeypatch):
    """With short descents and pilots: what a check looks at is not how good a fit is."""
    shorten(monkeypatch)
    check(estimator)


@pytest.fixture(scope="module")
def blobs():
    return make_blobs(60, 3, centers=3, random_state=0)


@pytest.fixture(scope="module")
def friedman():
    return make_friedman1(60, random_state=0)


@pytest.fixture(scope="module")
def classifier(blobs) -> NaturalLangevinClassifier:
    X, y = blobs
    return NaturalLangevinClassifier(random_state=0, **FAST).fit(X, np.array(["c", "a", "b"])[y])


@pytest.fixture(scope="module")
def regressor(friedman) -> NaturalLangevinRegressor:
    return NaturalLangevinRegressor(random_state=0, **FAST).fit(*friedman)


def test_probabilities_follow_the_order_of_the_labels(classifier, blobs):
    X, y = blobs
    assert classifier.classes_.tolist() == ["a", "b", "c"]
    probabilities = classifier.predict_proba(X)
    column = np.array([2, 0, 1])[y]  # class 0 was called "c", 1 "a", 2 "b"
    assert (probabilities.argmax(1) == column).mean() > 0.9
    assert_allclose(probabilities.sum(1), 1, rtol=1e-12)
    assert_allclose(classifier.predict_log_proba(X), np.log(probabilities))
    assert (classifier.predict(X) == classifier.classes_[probabilities.argmax(1)]).all()


def test_probabilities_are_the_posteriors_own(classifier, blobs):
    X, _ = blobs
    assert isinstance(classifier.posterior_, Posterior)
    x = classifier.network_inputs(X)
    assert_allclose(x, (X - X.mean(0)) / X.std(0), rtol=1e-9)
    assert_allclose(classifier.predict_proba(X), classifier.posterior_.predict(x).mean, rtol=1e-9)
    assert classifier.n_iter_ == 80
    assert classifier.posterior_.chains == 2


def test_the_units_of_inputs_and_targets_do_not_matter(friedman, regressor):
    X, y = friedman
    scale = 10.0 ** np.arange(-3, 7)
    other = clone(regressor).fit(scale * X + 5 * scale, 7 * y - 3)
    mean, std = regressor.predict(X, return_std=True)
    other_mean, other_std = other.predict(scale * X + 5 * scale, return_std=True)
    assert_allclose(other_mean, 7 * mean - 3, rtol=1e-6)
    assert_allclose(other_std, 7 * std, rtol=1e-6)


def test_deviations_hold_noise_and_disagreement(friedman, regressor):
    """Mean and variance of the mixture over networks, by the law of total variance."""
    X, _ = friedman
    posterior, y = regressor.posterior_, friedman[1]
    x = regressor.network_inputs(X)
    means = posterior.predict(x).samples[..., 0].numpy() * y.std() + y.mean()
    sigma = posterior.sigma.numpy() * y.std()
    mean, std = regressor.predict(X, return_std=True)
    assert_allclose(mean, means.mean(0), rtol=1e-9)
    assert_allclose(std**2, means.var(0) + (sigma**2).mean(), rtol=1e-9)
    assert_allclose(regressor.predict(X), mean)


def test_the_noise_of_a_linear_problem_is_found():
    """y = 3 a - b + N(0, 1): with 300 data its deviation is known to 4 % (one standard error)."""
    generator = np.random.default_rng(0)
    X = generator.normal(size=(1300, 2))
    y = 3 * X[:, 0] - X[:, 1] + generator.normal(size=1300)
    model = NaturalLangevinRegressor(
        (16,), steps=400, chains=4, step_size=0.005, prior_variance=0.3, folds=0, random_state=0
    ).fit(X[:300], y[:300])
    sigma = np.sqrt(model.predict_dist(X[:1]).aleatoric[0])
    assert 0.88 < sigma < 1.12
    mean, std = model.predict(X[300:], return_std=True)
    inside = np.abs(y[300:] - mean) < 1.645 * std
    # A deviation that is off by 4 % moves the coverage by 1.4 %; 1000 data tell it to 0.95 %.
    assert inside.mean() == pytest.approx(0.9, abs=3 * np.hypot(0.014, 0.0095))


def test_before_fit_networks_are_missed_by_name(friedman):
    with pytest.raises(NotFittedError, match="not fitted yet"):
        NaturalLangevinRegressor().predict_dist(friedman[0])


def test_several_targets_at_once(friedman):
    X, y = friedman
    both = np.stack([y, -100 * y], axis=1)
    model = NaturalLangevinRegressor(random_state=0, **FAST).fit(X, both)
    mean, std = model.predict(X, return_std=True)
    found = model.predict_dist(X)
    assert mean.shape == std.shape == found.quantile(0.5).shape == (60, 2)
    assert found.sample(3).shape == (3, 60, 2)
    assert found.log_prob(both).shape == (60,)
    assert_allclose(found.aleatoric[:, 1] / found.aleatoric[:, 0], 100**2)
    assert model.score(X, both) > 0.3


def test_sparse_inputs_are_the_same_inputs(blobs, classifier):
    X, y = blobs
    other = clone(classifier).fit(sparse.csr_array(X), y)
    assert_allclose(
        other.predict_proba(sparse.csc_array(X)), clone(classifier).fit(X, y).predict_proba(X)
    )


def test_a_fitted_estimator_survives_pickling(classifier, regressor, blobs, friedman):
    for model, X in ((classifier, blobs[0]), (regressor, friedman[0])):
        again = pickle.loads(pickle.dumps(model))
        assert (again.predict(X) == model.predict(X)).all()


def test_pipelines_and_grid_search(blobs):
    X, y = blobs
    pipeline = make_pipeline(MinMaxScaler(), NaturalLangevinClassifier(random_state=0, **FAST))
    name = "naturallangevinclassifier__prior_variance"
    search = GridSearchCV(pipeline, {name: [1e-6, 1.0]}, scoring="neg_log_loss", cv=2)
    search.fit(X, y)
    assert search.best_params_ == {name: 1.0}  # a prior that forbids every weight cannot win
    assert search.score(X, y) > -0.6


def test_settings_reach_the_sampler(blobs):
    X, y = blobs
    model = NaturalLangevinClassifier(
        (4, 3), activation="tanh", preconditioner="rmsprop", prior_variance=2.0, temperature=0.5,
        random_state=1, **{k: FAST[k] for k in ("steps", "chains", "step_size", "folds")},
    ).fit(X, y)  # fmt: skip
    config = model.posterior_.config
    assert config["preconditioner"].startswith("RMSProp")
    assert config["temperature"] == [0.5, 0.5]
    assert set(config["prior"].values()) == {repr(priors.Gaussian(variance=2.0))}
    assert model.posterior_.samples["2.weight"].shape[2:] == (3, 4)
    assert "Tanh" in str(model.posterior_.network(0, 0))


def test_too_few_data_to_hold_out_are_sampled_all_the_same():
    X, y = np.arange(5.0)[:, None], np.arange(5.0)
    model = NaturalLangevinRegressor(steps=20, chains=2, random_state=0).fit(X, y)
    assert model.reason_ == "noise of one size, 1 hidden layer (no cross-validation)"
    assert np.isfinite(model.predict(X)).all()


def test_without_folds_a_pilot_chooses_the_step_size(blobs):
    model = NaturalLangevinClassifier(steps=20, chains=2, folds=0, random_state=0).fit(*blobs)
    assert model.posterior_.plan.measured["curvature"] > 0
    assert model.posterior_.plan.step_size > 0
    assert (model.scale_, model.weights_.tolist()) == (1.0, [1.0])


@pytest.mark.parametrize(
    ("setting", "value", "message"),
    [
        ("activation", "sine", "one of .*'relu'.*got 'sine'"),
        ("preconditioner", "adam", "one of .*'qdop'.*got 'adam'"),
        (
            "prior_variance",
            -1,
            'positive number or "auto" or "learned" or "fan_in", got -1',
        ),
        (
            "prior_variance",
            "wide",
            '"learned" or "fan_in", got .wide.',
        ),
        ("step_size", "Auto", 'must be "auto", a positive number or a schedule, got .Auto.'),
        ("hidden_layer_sizes", None, "positive integers .* got None"),
        ("hidden_layer_sizes", (True,), "positive integers .* got "),
        ("temperature", 0.0, 'positive number or "auto", got 0.0'),
        ("folds", 1, "0 or an integer of at least 2, got 1"),
        ("folds", True, "0 or an integer of at least 2, got True"),
        ("task", "count", "task must be one of .*'ordinal'.*got 'count'"),
        ("hidden_layer_sizes", (0,), r"positive integers .* got \(0,\)"),
        ("steps", 0, "steps must be a positive integer, got 0"),
        ("batch_size", 2.5, "batch_size must be a positive integer, got 2.5"),
        ("chains", 0, "chains must be a positive integer, got 0"),
    ],
)
def test_wrong_settings_are_named_at_fit(blobs, setting, value, message):
    model = NaturalLangevinClassifier(**FAST | {setting: value})
    with pytest.raises(ValueError, match=message):
        model.fit(*blobs)


def test_a_weight_of_two_is_a_row_twice(friedman):
    """Whole batches, so that the order of rows does not matter."""
    X, y = friedman
    weight = np.random.default_rng(0).integers(0, 4, size=60)
    options = FAST | {"random_state": 0, "batch_size": 1000}
    one = NaturalLangevinRegressor(**options).fit(X, y, sample_weight=weight)
    many = NaturalLangevinRegressor(**options).fit(X.repeat(weight, axis=0), y.repeat(weight))
    assert_allclose(one.predict(X), many.predict(X), rtol=1e-6)
    part = NaturalLangevinRegressor(**options).fit(X, y, sample_weight=weight / 3)
    assert part.posterior_.config["num_data"] == round(weight.sum() / 3)


def test_weighted_and_repeated_rows_are_one_posterior_whatever_their_order():
    """Minibatches, so that draws differ. Chains are independent: Student's t of two runs at every
    input, of which the largest passes its limit once in a thousand where the posteriors agree."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(40, 2))
    y = (X[:, 0] + rng.normal(size=40) > 0).astype(int)
    weight = np.where(y == 1, rng.integers(1, 5, size=40), rng.integers(0, 2, size=40))
    rows = rng.permutation(np.repeat(np.arange(40), weight))
    at, chains = rng.normal(size=(10, 2)), 8
    settings = {"steps": 800, "chains": chains, "folds": 0, "step_size": 0.02, "batch_size": 20}

    def by_chain(x, y, **options):
        model = NaturalLangevinClassifier((3,), random_state=0, **settings).fit(x, y, **options)
        samples = model.posterior_.predict(model.network_inputs(at), calibrated=False).samples
        return samples[..., 1].reshape(chains, -1, len(at)).mean(1).numpy()

    def largest(one, other):
        return np.abs(scipy.stats.ttest_ind(one, other).statistic).max()

    limit = scipy.stats.t.isf(0.001 / 2 / len(at), 2 * chains - 2)
    weighted = by_chain(X, y, sample_weight=weight)
    assert 0 < largest(weighted, by_chain(X[rows], y[rows])) < limit
    assert largest(weighted, by_chain(X, y)) > 2 * limit


def test_balanced_weights_move_probabilities_to_the_rare_class():
    rng = np.random.default_rng(0)
    X = np.concatenate([rng.normal(size=(190, 1)), rng.normal(1.0, size=(10, 1))])
    y = np.repeat([0, 1], [190, 10])
    settings = {"steps": 500, "chains": 2, "folds": 0, "step_size": 0.01, "random_state": 0}
    plain = NaturalLangevinClassifier((8,), **settings).fit(X, y)
    weight = compute_sample_weight("balanced", y)
    balanced = NaturalLangevinClassifier((8,), **settings).fit(X, y, sample_weight=weight)
    assert plain.predict_proba(X)[:, 1].mean() < 0.12
    assert balanced.predict_proba(X)[:, 1].mean() > 0.3


def test_frames_with_words_dates_and_gaps(friedman):
    X, y = friedman
    frame = pd.DataFrame({"a": X[:, 3], "b": X[:, 0]})
    frame["kind"] = np.where(X[:, 1] > 0.5, "high", "low")
    frame["when"] = pd.Timestamp("2024-01-01") + pd.to_timedelta(np.arange(60), unit="D")
    frame.loc[3, "a"] = np.nan
    model = NaturalLangevinRegressor(random_state=0, **FAST).fit(frame, y)
    assert model.feature_names_in_.tolist() == ["a", "b", "kind", "when"]
    new = frame.iloc[:2].assign(kind=["unheard", None])
    assert np.isfinite(model.predict(new)).all()
    assert any("a: 1 of 60 cells is missing" in n for n in model.features_.notices)


def test_missing_numbers_of_arrays_are_filled(blobs):
    X, y = blobs
    X = X.copy()
    X[0, 0] = np.nan
    model = NaturalLangevinClassifier(random_state=0, **FAST).fit(X, y)
    assert np.isfinite(model.predict_proba(X)).all()


def test_the_command_line_and_the_estimator_give_one_answer(tmp_path):
    """The same table, seed and settings; nothing held out."""
    table = prices(tmp_path / "prices.csv", rows=60)
    frame = pd.read_csv(table)
    seed = int(np.random.RandomState(0).randint(2**31 - 2))
    words = ("train", table, "--target", "price", "--out", tmp_path / "r", "--hold-out", "0")
    small = ("--steps", "16", "--chains", "2", "--hidden", "16", "--seed", str(seed))
    result = run(*words, *small)
    assert result.exit_code == 0, result.output
    assert run("predict", tmp_path / "r", table, "--out", tmp_path / "p.csv").exit_code == 0
    model = NaturalLangevinRegressor((16,), steps=16, chains=2, random_state=0)
    model.fit(frame[["area"]], frame["price"])
    found = pd.read_csv(tmp_path / "p.csv")
    mean, std = model.predict(frame[["area"]], return_std=True)
    assert_allclose(found["mean"], mean, rtol=1e-6)
    assert_allclose(found["sd"], std, rtol=1e-5)


def test_several_labels_per_row():
    """Two labels that the first column decides, and one that is noise."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 2))
    y = np.stack([X[:, 0] > 0, X[:, 0] < 0.5, rng.random(300) < 0.3], axis=1).astype(int)
    model = NaturalLangevinClassifier((16,), steps=400, chains=2, random_state=0).fit(X, y)
    p = model.predict_proba(X)
    assert p.shape == model.predict(X).shape == (300, 3)
    assert (model.predict(X)[:, :2] == y[:, :2]).mean() > 0.93
    # The noise has the share that it has, within three standard errors.
    assert p[:, 2].mean() == pytest.approx(y[:, 2].mean(), abs=3 * np.sqrt(0.21 / 300))
    draws = model.sample_y(X, 50)
    assert draws.shape == (300, 3, 50)
    assert set(np.unique(draws)) == {0, 1}
    assert_allclose(draws.mean(-1).mean(0), p.mean(0), atol=0.02)
    with pytest.raises(ValueError, match="several labels"):
        model.predict_set(X)


def test_partial_dependence_has_the_slope_and_its_uncertainty():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 3))
    y = 2 * X[:, 0] + 0.1 * rng.normal(size=300)
    model = NaturalLangevinRegressor((16,), steps=600, chains=2, folds=2, random_state=0).fit(X, y)
    found = model.partial_dependence(X, 0, values=[-1.0, 0.0, 1.0, 6.0])
    assert_allclose(found.mean[:3, 0], [-2, 0, 2], atol=0.2)
    width = (found.high - found.low)[:, 0]
    assert (width > 0).all()
    assert width[3] > 3 * width[1]  # where there are no data, networks disagree
    flat = model.partial_dependence(X, "x1")
    assert len(flat.values) == 20
    assert np.ptp(flat.mean) < 0.4
    with pytest.raises(ValueError, match="not a column in use"):
        model.partial_dependence(X, "x9")


def test_permutation_importance_names_the_column_that_matters(blobs):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"kind": rng.choice(["a", "b"], size=200), "noise": rng.normal(size=200)})
    y = np.where(frame["kind"] == "a", "yes", "no")
    model = NaturalLangevinClassifier((8,), steps=300, chains=2, folds=2, random_state=0)
    model.fit(frame[:100], y[:100])
    found = model.permutation_importance(frame[100:], y[100:])
    assert found.names == ("kind", "noise")
    assert found.mean[0] > 5 * found.error[0] > 0
    assert abs(found.mean[1]) < 0.2 * found.mean[0]
    levels = model.partial_dependence(frame, "kind")
    assert levels.values == ["a", "b"]
    assert levels.mean[0, 1] > 0.8 > 0.2 > levels.mean[1, 1]  # classes "no", "yes"
    with pytest.raises(ValueError, match="none of"):
        model.permutation_importance(frame[:2], ["yes", "maybe"])


def test_frames_name_the_row_of_a_bad_target_or_of_one_that_cannot_be_predicted(caplog):
    frame = pd.DataFrame({"a": np.arange(12.0) ** 2, "b": [1.0, None, 2.0] * 4})
    model = NaturalLangevinRegressor(steps=8, folds=0, chains=2, hidden_layer_sizes=(2,))
    with pytest.raises(ValueError, match=r"missing in 1 of 12 rows \(first: row 3\)"):
        model.fit(frame, [1.0, 2.0, 3.0, None, *range(8)])
    with pytest.raises(ValueError, match=r"y is '\$1,200' in row 1, no number"):
        model.fit(frame, ["900", "$1,200", *map(str, range(10))])
    model.fit(frame, np.arange(12.0))
    assert "first: the table, row 1)" in " ".join(model.features_.notices)
    model.predict(pd.DataFrame({"a": [3.0, None], "b": [1.0, None]}))
    assert [r.message for r in caplog.records if r.message.startswith("row ")] == [
        "row 1: every cell is missing; it is predicted as an average row"
    ]


def test_answers_do_not_depend_on_how_many_rows_are_asked_at_a_time(monkeypatch):
    """Memory is bounded by CHUNK; of frames of any length the answers are the same."""
    x = np.random.default_rng(0).normal(size=(40, 2))
    model = NaturalLangevinRegressor(steps=30, chains=2, folds=2, random_state=0).fit(x, x[:, 0])

    def answers():
        both = model.predict(x, return_std=True), model.predict_interval(x)
        return [*both[0], *both[1], model.predict(x), model.predict_quantiles(x)]

    whole = answers()
    monkeypatch.setattr("natural_langevin.sklearn.base.CHUNK", 7)
    for one, other in zip(whole, answers(), strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-5, atol=1e-6)
    assert model.sample_y(x, 3).shape == (40, 3)


@pytest.mark.parametrize("kind", ["datetime64[ns]", "timedelta64[s]"])
def test_dates_are_no_numbers_to_learn(kind):
    with pytest.raises(ValueError, match=r"dates or durations.*timedelta64\(1, 'D'\)"):
        NaturalLangevinRegressor(steps=8).fit(np.eye(12), np.arange(12).astype(kind))


def test_sharpened_classes_keep_the_share_that_is_epistemic():
    """However sure the mixture is made: neither part of the entropy vanishes for it."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 2))
    y = (X[:, 0] + 0.5 * rng.normal(size=60) > 0).astype(int)
    model = NaturalLangevinClassifier((8,), steps=20, chains=4, folds=0, random_state=0).fit(X, y)
    x = model.network_inputs(X)
    shares = []
    for scale in (1.0, 0.3):
        learned = dataclasses.replace(model.learned_, scale=scale)
        p, epistemic = learned.uncertainty(x)
        shares.append(epistemic / -(p * p.log()).sum(1))
    assert 0 < shares[0].min() <= shares[0].max() < 1
    assert_allclose(shares[0], shares[1], rtol=1e-5)
