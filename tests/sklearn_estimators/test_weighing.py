"""The cross-validation of the estimators: folds as chains, weights, sharpness."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from natural_langevin.sklearn.candidates import Candidate, candidates
from natural_langevin.sklearn.problem import HeldOut, Networks, Problem, split
from natural_langevin.sklearn.weighing import weigh_classes, weigh_numbers
from numpy.testing import assert_allclose
from scipy import stats
from sklearn.datasets import load_iris, make_blobs, make_friedman1
from sklearn.utils.estimator_checks import estimator_checks_generator
from torch.testing import assert_close

from natural_langevin import likelihoods, models, preconditioners
from natural_langevin.sampling.loop import DivergenceError
from natural_langevin.sklearn import NaturalLangevinClassifier, NaturalLangevinRegressor

SMALL = {"hidden_layer_sizes": (8,), "steps": 30, "chains": 2, "random_state": 0}


def test_what_the_user_sets_is_not_left_open():
    offered = candidates("auto", "auto", "auto", preconditioner="qdop")
    described = [(c.variance, c.temperature, c.step_size) for c in offered]
    warm = [(variance, 1, size) for variance in ("learned", "fan_in") for size in (0.3, 0.1)]
    assert described == [*warm, (3, 0.3, 0.1), (3, 0.03, 0.1)]
    own = {c.temperature for c in candidates(2.0, "auto", "auto", preconditioner="qdop")}
    assert own == {1.0, 0.3, 0.03}  # the posterior itself is among them
    fixed = candidates(2.0, 0.5, 0.2, preconditioner="sgld")
    assert fixed == [Candidate(2.0, 0.5, 0.2, automatic=False)]
    assert {c.temperature for c in candidates("auto", 1.0, "auto", preconditioner="dop")} == {1.0}
    assert {c.variance for c in candidates("learned", "auto", 0.1, preconditioner="dop")} == {
        "learned"
    }


@pytest.mark.parametrize("count", [12, 61, 3000])
def test_folds_are_apart_of_one_size_and_hold_every_class(count):
    labels = np.arange(count) % 3
    folds = split(count, 4, 0, labels)
    assert {len(fold) for fold in folds} == {min(count // 4, 500)}
    assert len(torch.cat(folds).unique()) == 4 * len(folds[0])
    for fold in folds:
        share = np.bincount(labels[fold], minlength=3) / len(fold)
        assert np.abs(share - 1 / 3).max() <= 1.01 / len(fold) + 0.07 * (count == 3000)


def problem(**changes) -> Problem:
    x, labels = make_blobs(40, 2, centers=3, random_state=0)
    settings = {
        "network": models.mlp(2, 3, (6,)).double(),
        "likelihood": likelihoods.Categorical(),
        "x": torch.as_tensor(x),
        "y": torch.as_tensor(labels),
        "preconditioner": lambda d: preconditioners.QuasiDiagonalFisher(damping=d),
        "batch_size": 16, "steps": 20, "chains": 2, "seed": 0, "device": None, "progress": False,
    }  # fmt: skip
    return Problem(**settings | changes)


OFFERED = candidates("auto", "auto", "auto", preconditioner="qdop")


def test_held_out_rows_are_told_by_networks_that_never_saw_them():
    """Other labels in fold 0 change what is said of fold 1, and nothing of what is said of it."""
    here = problem()
    folds = split(40, 4, 0, here.y.numpy())
    labels = here.y.clone()
    labels[folds[0]] = (labels[folds[0]] + 1) % 3
    found, other = (p.held_out(OFFERED, folds) for p in (here, problem(y=labels)))
    assert list(found.networks) == list(range(6))
    for k in found.networks:
        assert found.networks[k][0].outputs.shape == (1, 10, 3)  # the average of its networks
        assert_close(other.networks[k][0].outputs, found.networks[k][0].outputs)
        assert not torch.allclose(other.networks[k][1].outputs, found.networks[k][1].outputs)


def test_a_candidate_that_diverges_is_left_out():
    """The chains of those after it move up, and are still taken for theirs."""
    wild = Candidate(3.0, 1.0, 1e60, automatic=True)
    here = problem()
    folds = split(40, 4, 0, here.y.numpy())
    alone = here.held_out([OFFERED[4], OFFERED[5], OFFERED[5]], folds)
    held_out = here.held_out([OFFERED[4], wild, OFFERED[5]], folds)
    assert list(held_out.networks) == [0, 2]
    for k in (0, 2):  # chains at the same places, beside others
        for fold in range(4):
            assert_close(held_out.networks[k][fold].outputs, alone.networks[k][fold].outputs)
    weighed = weigh_classes(held_out, here.y, 3)
    assert weighed.nll[1] is None
    assert weighed.weight[1] == 0
    assert sum(weighed.weight) == pytest.approx(1)
    with pytest.raises(DivergenceError, match="smaller step_size"):
        here.held_out([wild], folds)


def test_weights_and_scale_of_classes():
    """Candidate 0 says the truth, to the power 2; candidate 1 nothing at all."""
    generator = np.random.default_rng(0)
    truth = generator.dirichlet(np.ones(3), size=4000)
    y = torch.tensor([generator.choice(3, p=p) for p in truth])
    sharp = truth**2 / (truth**2).sum(1, keepdims=True)
    said = {0: sharp, 1: np.full_like(truth, 1 / 3)}
    rows = torch.arange(4000)
    networks = {
        k: [
            Networks(torch.tensor(p[part])[None], None) for part in (slice(1000), slice(1000, 4000))
        ]
        for k, p in said.items()
    }
    alone = weigh_classes(HeldOut(rows, {0: networks[0]}), y, 1)
    assert alone.scale == pytest.approx(2, rel=0.1)
    assert alone.nll[0] == pytest.approx(-np.log(sharp[np.arange(4000), y]).mean())
    both = weigh_classes(HeldOut(rows, networks), y, 2)
    assert 0.5 < both.weight[0] < 1  # some of the flat one makes the sharp one honest
    assert both.scale < alone.scale


def test_weights_and_scale_of_numbers():
    """y ~ N(m, 1). Candidate 0 knows m and says its noise is 0.7; candidate 1 has another m."""
    generator = np.random.default_rng(0)
    m = generator.normal(size=(3000, 1))
    y = torch.tensor(m + generator.normal(size=(3000, 1)))
    rows, sigma = torch.arange(3000), torch.tensor([0.7])
    means = {0: torch.tensor(m), 1: torch.tensor(m[::-1].copy())}
    networks = {k: [Networks(mean[None], sigma)] for k, mean in means.items()}
    found = weigh_numbers(HeldOut(rows, networks), y, 2)
    assert found.weight[0] > 0.95
    assert found.scale == pytest.approx(1 / 0.7, rel=0.05)
    expected = -stats.norm.logpdf(y.numpy(), m, 0.7).mean()
    assert found.nll[0] == pytest.approx(expected)


def test_predictions_are_the_weighted_mixture_of_the_posteriors():
    X, y = make_blobs(60, 3, centers=3, cluster_std=4, random_state=0)
    model = NaturalLangevinClassifier(**SMALL).fit(X, y)
    x = torch.as_tensor((X - X.mean(0)) / X.std(0))
    mixture = sum(
        w * p.predict(x).mean for w, p in zip(model.weights_, model.posteriors_, strict=True)
    )
    expected = (mixture.log() / model.scale_).softmax(1)
    assert_allclose(model.predict_proba(X), expected, rtol=1e-9)
    assert model.weights_.sum() == pytest.approx(1)
    assert model.posterior_ is model.posteriors_[int(model.weights_.argmax())]
    assert [one["weight"] for one in model.choice_ if one["weight"]] == model.weights_.tolist()
    assert all(math.isfinite(one["nll"]) for one in model.choice_)
    best = max(model.choice_, key=lambda one: one["weight"])
    assert model.reason_.startswith(f"{best['weight']:.0%} prior variance ")
    assert f"temperature {best['temperature']:g}, step size {best['step_size']:g}" in model.reason_
    assert "4 folds, 6 candidates" in model.reason_


def test_deviations_of_a_weighted_mixture():
    X, y = make_friedman1(60, random_state=0)
    model = NaturalLangevinRegressor(**SMALL).fit(X, y)
    means, sigma, weights = model.predict_networks(X)
    mean, std = model.predict(X, return_std=True)
    assert weights.sum() == pytest.approx(1)
    assert_allclose(mean, weights @ means, rtol=1e-9)
    assert_allclose(std**2, weights @ (means**2 + sigma[:, None] ** 2) - mean**2, rtol=1e-7)


#: Of scikit-learn's checks (test_estimators runs all of them without folds): those that fit
#: again, few data, or store what was fitted.
CHECKS = (
    "check_dict_unchanged",
    "check_estimators_pickle",
    "check_fit2d_1feature",
    "check_fit2d_1sample",
    "check_fit_idempotent",
)


@pytest.mark.parametrize("kind", [NaturalLangevinClassifier, NaturalLangevinRegressor])
def test_checks_of_scikit_learn_with_folds(kind):
    estimator = kind((8,), steps=10, chains=2, folds=2)
    done = set()
    for instance, check in estimator_checks_generator(estimator):
        if (name := check.func.__name__) in CHECKS:
            check(instance)
            done.add(name)
    assert done == set(CHECKS)


def test_several_targets_with_folds():
    X, y = make_friedman1(60, random_state=0)
    model = NaturalLangevinRegressor(**SMALL).fit(X, np.stack([y, -100 * y], axis=1))
    mean, std = model.predict(X, return_std=True)
    means, sigma, weights = model.predict_networks(X)
    assert mean.shape == std.shape == (60, 2)
    assert sigma.shape == (len(weights), 2)
    assert_allclose(mean, np.tensordot(weights, means, 1), rtol=1e-9)


def test_what_diverges_on_all_the_data_counts_no_more(monkeypatch, caplog):
    X, y = make_blobs(60, 3, centers=3, cluster_std=4, random_state=0)
    posterior = Problem.posterior

    def some_fail(self: Problem, candidate: Candidate):
        if candidate.variance == "learned":
            raise DivergenceError("for the test")
        return posterior(self, candidate)

    monkeypatch.setattr(Problem, "posterior", some_fail)
    model = NaturalLangevinClassifier(**SMALL).fit(X, y)
    assert model.weights_.sum() == pytest.approx(1)
    assert all(one["weight"] == 0 for one in model.choice_ if one["prior_variance"] == "learned")
    assert "diverged on all the data, and is left out" in caplog.text
    with pytest.raises(DivergenceError):
        NaturalLangevinClassifier(**SMALL, prior_variance="learned").fit(X, y)


def test_few_rows_have_fewer_folds():
    X, y = make_blobs(8, 2, centers=2, random_state=0)
    model = NaturalLangevinClassifier(**SMALL).fit(X, y)
    assert "2 folds" in model.reason_


def test_by_default_nothing_is_chosen_by_hand():
    """Iris, with the defaults but for the number of steps."""
    X, y = load_iris(return_X_y=True)
    model = NaturalLangevinClassifier(steps=60, random_state=0).fit(X[::2], y[::2])
    assert len(model.choice_) == 6
    assert model.score(X[1::2], y[1::2]) > 0.9


def test_the_variance_of_a_layer_goes_by_its_inputs():
    network = models.mlp(5, 2, (7,))
    prior = Candidate("fan_in", 1.0, 0.1, automatic=True).prior(network)
    variances = [prior[name].variance for name, _ in network.named_parameters()]
    assert variances == [3 / 5, 3, 3 / 7, 3]
    assert Candidate("fan_in", 1.0, 0.1, automatic=True).least_variance(network) == 3 / 7
