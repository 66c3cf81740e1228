"""Arguments of any kind to the public names: an answer, or a clear refusal, and soon.

Hypothesis draws settings, most of them right and some not; what it has found once stands in
``CORPUS`` and is tried first. After ``BUDGET`` seconds of its own time the rest is left out."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

import small_run
from fuzzing import examples
from natural_langevin import (
    DivergenceError,
    Langevin,
    Posterior,
    likelihoods,
    preconditioners,
    priors,
    schedules,
)
from natural_langevin.optim import NaturalLangevin

BUDGET = examples(12)
CASES = settings(
    max_examples=examples(200),
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
#: What may be said of a wrong argument. Anything else is torch's or Python's own surprise.
CLEAR = (ValueError, TypeError, DivergenceError)
#: Words of errors that were not ours.
FOREIGN = (
    "aten::",
    "Facebook",
    "INTERNAL ASSERT",
    "object is not subscriptable",
    "has no attribute",
)

X, Y = small_run.data()
ODD: list[Any] = [
    None, True, -1, 0, 0.5, 1.5, 2**31, 2**63, 10**30, math.nan, math.inf, -math.inf, 1e-300, 1e300,
    "", "x" * 100, b"x", [], [1], (), {}, {"*": 1}, 1j, np.int64(3), np.float32(0.1),
    torch.tensor(0.1), torch.tensor([0.1, 0.2]), torch.tensor([[1]]), object, print,
]  # fmt: skip
odd = st.sampled_from(ODD)


def mostly(*good: Any) -> st.SearchStrategy[Any]:
    return st.one_of(st.sampled_from(good), st.sampled_from(good), st.sampled_from(good), odd)


SAMPLER = {
    "prior": mostly(priors.Gaussian(0.1), priors.Laplace(0.3), {"*": priors.Flat()}),
    "preconditioner": mostly(preconditioners.RMSProp(), preconditioners.QuasiDiagonalFisher()),
    "step_size": mostly(1e-3, schedules.halving(1e-3, every=5), torch.tensor([1e-3, 1e-4])),
    "temperature": mostly(1.0, 0.0, torch.tensor([1.0, 0.5])),
    "chains": mostly(2),
    "num_data": mostly(None, 60),
    "init": mostly("model", "fan_in"),
    "seed": mostly(0, 7),
    "device": mostly("cpu", None),
    "compile": mostly(False, "auto"),
    "microbatch": mostly(None, 7),
    "clip": mostly(None, 1.0),
    "mean_rate": mostly(None, 0.1),
}
CALL = {
    "steps": mostly(5, 9),
    "batch_size": mostly(20, 60, None),
    "burn_in": mostly(0, 2, None),
    "thin": mostly(1, 2, None),
    "keep": mostly(None, 3),
    "exchange": mostly(None),
    "sample_dtype": mostly(None, torch.float16),
    "callback": mostly(None),
}
DATA = st.one_of(
    st.just((X, Y)),
    st.tuples(
        st.sampled_from([X, X[:0], X[0], X.double(), X.long(), X.to_sparse(), X.numpy(), *ODD]),
        st.sampled_from([Y, Y[:5], Y.float(), Y + 9, Y[:, None], Y.numpy(), *ODD]),
    ),
    odd,
)


def some_of(options: dict[str, st.SearchStrategy[Any]]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional=options)


#: (sampler, call, data) that were answered wrongly once.
CORPUS: list[tuple[dict[str, Any], dict[str, Any], Any]] = [
    ({"chains": 10**9}, {}, (X, Y)),
    ({}, {"steps": 10**30}, (X, Y)),
    ({}, {}, (X.to_sparse(), Y)),
    ({}, {}, (np.float32(0.1), Y)),
]


@contextlib.contextmanager
def answered_or_refused() -> Iterator[None]:
    """Around a call: what it raises must be a clear refusal, and come soon."""
    began = time.process_time()
    try:
        yield
    except CLEAR as error:
        said = str(error)
    else:
        said = "answered"
    assert said, "no word"
    assert not any(word in said for word in FOREIGN), said
    assert time.process_time() - began < 20, "it computes for seconds"


def assert_answered_or_refused(sampler: dict[str, Any], call: dict[str, Any], data: Any) -> None:
    """One short run."""
    sampler = {"step_size": 1e-3, "chains": 2} | sampler
    with answered_or_refused():
        made = Langevin(small_run.network(), likelihoods.Categorical(), **sampler)
        found = made.sample(data, **{"steps": 5, "progress": False} | call)
        healthy = [v[found.healthy] for v in found.samples.values()]
        assert all(torch.isfinite(v).all() for v in healthy)


def test_what_was_found_once():
    for case in CORPUS:
        assert_answered_or_refused(*case)


def within_budget(started: list[float]) -> bool:
    started.append(time.process_time())
    return started[-1] - started[0] < BUDGET


STARTED: dict[str, list[float]] = {"sample": [], "predict": [], "optimizer": []}


@pytest.mark.thorough
@CASES
@given(some_of(SAMPLER), some_of(CALL), DATA)
def test_sample(sampler, call, data):
    if within_budget(STARTED["sample"]):
        assert_answered_or_refused(sampler, call, data)


POSTERIOR: list[Posterior] = []


@pytest.mark.thorough
@CASES
@given(
    st.sampled_from([X, X[:0], X[0], X.double(), X.long(), X.numpy(), X[:, :2], *ODD]),
    some_of(
        {
            "estimate": mostly("ensemble", "mean", "last"),
            "batch_size": mostly(7, 1000),
            "sample_batch": mostly(1, 16),
            "quantiles": mostly(None, (0.1, 0.9)),
            "chains": mostly(None, "all", [0], [1, 0]),
            "sharpness": mostly(None, 1.0, 2.0),
        }
    ),
)
def test_predict(x, options):
    if not within_budget(STARTED["predict"]):
        return
    if not POSTERIOR:
        POSTERIOR.append(small_run.sample())
    with answered_or_refused():
        assert torch.isfinite(POSTERIOR[0].predict(x, **options).mean).all()


@pytest.mark.thorough
@CASES
@given(
    some_of(
        {
            "num_data": mostly(60),
            "lr": mostly(1e-3),
            "prior": SAMPLER["prior"],
            "preconditioner": SAMPLER["preconditioner"],
            "temperature": mostly(1.0, 0.0),
            "params": mostly(None, "*.weight", [{"params": "*", "lr": 1e-4}]),
            "reduction": mostly("mean", "sum"),
            "seed": mostly(0),
            "chain": mostly(0, 3),
        }
    )
)
def test_optimizer(options):
    if not within_budget(STARTED["optimizer"]):
        return
    model = small_run.network()
    with answered_or_refused():
        made = NaturalLangevin(model, likelihoods.Categorical(), **{"num_data": 60} | options)
        nn.functional.cross_entropy(model(X), Y, reduction=made.reduction).backward()
        made.step()
        assert all(torch.isfinite(p).all() for p in model.parameters())
