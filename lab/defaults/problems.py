"""Twenty problems on which no default was chosen: tables, generated ones, digits as pixels and as
images. Inputs and targets that are numbers are standardised by their training rows.

Every problem has several splits. Those of the UCI tables are the usual ones; tables of scikit-learn
are permuted by the split's number, and generated ones drawn anew. At most ``MOST`` rows are learned
from, and as many tested on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from lab.defaults import rivals
from lab.uci.data import TABLES, load, split
from natural_langevin import Langevin, Posterior, likelihoods, models

MOST = 1000


class Problem(NamedTuple):
    """Standardised training and test rows, and the network for a rate of dropout and a seed."""

    x: Tensor
    y: Tensor
    x_test: Tensor
    y_test: Tensor
    make: rivals.Make


def likelihood_for(y: Tensor) -> likelihoods.Likelihood:
    """Numbers have noise of a width that the recipe finds, labels are classes."""
    return likelihoods.Gaussian("rmse") if y.is_floating_point() else likelihoods.Categorical()


def by_defaults(
    problem: Problem, seed: int = 0, steps: int | None = None, **options: Any
) -> tuple[Posterior, float]:
    """A posterior by pure defaults, or with other ``options`` of ``Langevin`` and, as "sample", of
    ``sample``; and the CPU-seconds it took."""
    began, sampled = time.process_time(), options.pop("sample", {})
    network = problem.make(0.0, seed)
    sampler = Langevin(network, likelihood_for(problem.y), seed=seed, **options)
    posterior = sampler.sample(
        (problem.x, problem.y), steps, partial=False, progress=False, **sampled
    )
    return posterior, time.process_time() - began


def steps_of(posterior: Posterior) -> int:
    """Those of all parts of a run."""
    return int(posterior.config["steps"] + posterior.config.get("steps_before", 0))


def _standardised(x: Tensor, reference: Tensor) -> Tensor:
    sd = reference.std(0)
    return (x - reference.mean(0)) / torch.where(sd > 0, sd, 1.0)


def _problem(x: Any, y: Any, x_test: Any, y_test: Any, *, image: bool = False) -> Problem:
    x, x_test = (torch.as_tensor(np.asarray(v), dtype=torch.float32)[:MOST] for v in (x, x_test))
    y, y_test = (torch.as_tensor(np.asarray(v))[:MOST] for v in (y, y_test))
    x, x_test = _standardised(x, x), _standardised(x_test, x)
    outputs = int(y.max()) + 1
    if y.is_floating_point():
        y, y_test = y.float()[:, None], y_test.float()[:, None]
        y, y_test, outputs = _standardised(y, y), _standardised(y_test, y), 1
    if image:
        x, x_test = x.reshape(-1, 1, 8, 8), x_test.reshape(-1, 1, 8, 8)

    def make(dropout: float, seed: int) -> nn.Module:
        if image:
            torch.manual_seed(seed)
            drop = [nn.Dropout(dropout)] if dropout else []
            return nn.Sequential(
                nn.Conv2d(1, 8, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), *drop,
                nn.Linear(72, outputs),
            )  # fmt: skip
        return models.mlp(x.shape[1], outputs, (50,), dropout=dropout, seed=seed)

    return Problem(x, y, x_test, y_test, make)


def _halves(x: Any, y: Any, *, number: int, image: bool = False) -> Problem:
    order = np.random.default_rng(number).permutation(len(x))
    cut = min(MOST, 2 * len(x) // 3)
    a, b = order[:cut], order[cut:]
    return _problem(x[a], y[a], x[b], y[b], image=image)


def _loaded(function: Callable[..., Any], number: int, **options: Any) -> Problem:
    return _halves(*function(**options), number=number)


def _uci(name: str, number: int) -> Problem:
    x, y, x_test, y_test = split(load(name), number)
    some = np.random.default_rng(number).permutation(len(x))[:MOST]
    return _problem(x[some], y[some].astype("f4"), x_test, y_test.astype("f4"))


def problems(number: int = 0) -> Iterator[tuple[str, Callable[[], Problem]]]:
    """Name and how to make it, in the split of this number."""
    from sklearn import datasets  # for developers

    for name in ("iris", "wine", "breast_cancer", "digits", "diabetes"):
        yield name, partial(_loaded, getattr(datasets, f"load_{name}"), number, return_X_y=True)
    yield (
        "digits as images",
        lambda: _halves(*datasets.load_digits(return_X_y=True), number=number, image=True),
    )
    for name in TABLES:
        yield f"uci {name}", partial(_uci, name, number)
    made: dict[str, Callable[[], Any]] = {
        "friedman 1": lambda: datasets.make_friedman1(1500, noise=1.0, random_state=number),
        "friedman 2": lambda: datasets.make_friedman2(900, noise=50.0, random_state=number),
        "circles": lambda: datasets.make_circles(600, noise=0.2, factor=0.5, random_state=number),
        "quantiles": lambda: datasets.make_gaussian_quantiles(
            n_samples=900, n_features=5, n_classes=3, random_state=number
        ),
        "classification": lambda: datasets.make_classification(
            1200, 15, n_informative=6, n_classes=3, flip_y=0.1, random_state=number
        ),
    }
    for name, function in made.items():
        yield name, partial(_loaded, function, number)
