"""The comparison with scikit-learn's own networks: ``python -m natural_langevin.sklearn.compare``.

Five data sets that scikit-learn ships, several random splits into training and test data. Ours is
``NaturalLangevinClassifier()`` / ``NaturalLangevinRegressor()`` with the defaults. Theirs is an
``MLPClassifier`` / ``MLPRegressor`` on standardised inputs (and targets) whose sizes, weight decay
and learning rate are chosen by cross-validated grid search on the training part, for log-loss or
squared error; the regressor's predictive deviation is that of its cross-validated residuals.
Nothing sees the test part before it is scored. Results are written row by row, and rows that the
file holds already are not run again.
"""

# ruff: noqa: N803 (scikit-learn calls its inputs X)
from __future__ import annotations

import argparse
import json
import logging
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import sklearn
import torch
from sklearn import datasets
from sklearn.base import clone
from sklearn.compose import TransformedTargetRegressor
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import GridSearchCV, cross_val_predict, train_test_split
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from natural_langevin import metrics
from natural_langevin.experiments.origin import origin
from natural_langevin.sklearn import NaturalLangevinClassifier, NaturalLangevinRegressor
from natural_langevin.sklearn.base import Array
from natural_langevin.sklearn.table import markdown, with_table
from natural_langevin.tabular import weighing
from natural_langevin.tabular.candidates import candidates
from natural_langevin.tabular.outcome import Outcome
from natural_langevin.tabular.predictive import Predictive
from natural_langevin.tabular.settings import Settings

log = logging.getLogger("natural_langevin")

#: Data set -> splits.
DATASETS = {"iris": 5, "wine": 5, "breast_cancer": 5, "diabetes": 5, "digits": 3}
TEST_PART = 0.3
#: Levels of the central intervals whose coverage is the calibration of a regression.
LEVELS = tuple(round(0.05 * k, 2) for k in range(1, 20))
GRID: dict[str, list[Any]] = {
    "hidden_layer_sizes": [(50,), (100,)],
    "alpha": [1e-4, 1e-1, 1.0],
    "learning_rate_init": [1e-3, 1e-2],
}
FOLDS, MOST_EPOCHS = 3, 200

Scored = dict[str, Any]


def load(name: str, split: int) -> tuple[Array, Array, Array, Array]:
    """X_train, X_test, y_train, y_test of one split; classes in proportion."""
    X, y = getattr(datasets, f"load_{name}")(return_X_y=True)
    labels = None if name == "diabetes" else y
    parts = train_test_split(X, y, test_size=TEST_PART, random_state=split, stratify=labels)
    return parts[0], parts[1], parts[2], parts[3]


def ours(name: str, X: Array, y: Array, split: int) -> Any:
    """Our estimator at its defaults, fitted."""
    kind = NaturalLangevinRegressor if name == "diabetes" else NaturalLangevinClassifier
    return kind(random_state=split).fit(X, y)


def theirs(name: str, X: Array, y: Array, split: int) -> Any:
    """The tuned network: a fitted GridSearchCV."""
    options = {"max_iter": MOST_EPOCHS, "random_state": split}
    if name == "diabetes":
        network = make_pipeline(StandardScaler(), MLPRegressor(**options))
        model = TransformedTargetRegressor(network, transformer=StandardScaler())
        prefix, scoring = "regressor__mlpregressor__", "neg_mean_squared_error"
    else:
        model = make_pipeline(StandardScaler(), MLPClassifier(**options))
        prefix, scoring = "mlpclassifier__", "neg_log_loss"
    grid = {prefix + setting: values for setting, values in GRID.items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # the last epoch's network is fine
        return GridSearchCV(model, grid, scoring=scoring, cv=FOLDS).fit(X, y)


METHODS = {"ours": ours, "mlp": theirs}


def classification_scores(probabilities: Array, y: Array) -> Scored:
    """NLL, accuracy and calibration error of probabilities (N, K)."""
    p, labels = torch.as_tensor(probabilities), torch.as_tensor(y)
    return {
        "nll": metrics.nll(p, labels),
        "accuracy": metrics.accuracy(p, labels),
        "calibration": metrics.expected_calibration_error(p, labels),
    }


def regression_scores(predicted: Predictive, y: Array) -> Scored:
    """Of predictive distributions of one number for every row."""
    inside = np.abs(2 * predicted.cdf(y) - 1)  # the central level that y lies on
    gaps = [abs(float((inside <= level).mean()) - level) for level in LEVELS]
    return {
        "nll": -float(predicted.log_prob(y).mean()),
        "rmse": metrics.rmse(torch.as_tensor(predicted.mean), torch.as_tensor(y)),
        "calibration": float(np.mean(gaps)),
        "coverage_90": float((inside <= 0.9).mean()),
    }


def mixture(means: Array, deviation: Array, weights: Array) -> Predictive:
    """Of networks with N(means[k], deviation[k]^2): means (network, n)."""
    centre, width = (torch.as_tensor(v, dtype=torch.float64) for v in (means, deviation))
    law = torch.distributions.Normal(centre[..., None], width[:, None, None])
    return Predictive(Outcome("regression", "constant"), law, torch.as_tensor(weights), flat=True)


def predictive(name: str, model: Any, train: tuple[Array, Array], X: Array) -> Any:
    """Class probabilities, or the predictive distributions of numbers."""
    if name != "diabetes":
        return model.predict_proba(X)
    if isinstance(model, NaturalLangevinRegressor):
        return model.predict_dist(X)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        unseen = cross_val_predict(clone(model.best_estimator_), *train, cv=5)
    deviation = np.sqrt(np.mean((train[1] - unseen) ** 2, keepdims=True))
    return mixture(model.predict(X)[None], deviation, np.ones(1))


def run(name: str, method: str, splits: int) -> Scored:
    """The row of a data set and a method."""
    found, seconds, chosen, count = [], [], [], 0
    for split in range(splits):
        X, X_test, y, y_test = load(name, split)
        start = time.process_time()
        model = METHODS[method](name, X, y, split)
        seconds.append(time.process_time() - start)
        score: Any = regression_scores if name == "diabetes" else classification_scores
        found.append(score(predictive(name, model, (X, y), X_test), y_test))
        chosen.append(_choice(model))
        count = len(y_test)
        log.info("%s %s split %d: %s", name, method, split, found[-1])
    return {
        "dataset": name,
        "method": method,
        "splits": list(range(splits)),
        "test": count,
        "scores": {k: [f[k] for f in found] for k in found[0]},
        "fit_seconds": seconds,
        "chosen": chosen,
    }


def _choice(model: Any) -> dict[str, Any]:
    if isinstance(model, GridSearchCV):
        return {k.rsplit("__", 1)[-1]: v for k, v in model.best_params_.items()}
    return {"candidates": model.learned_.choice, "scale": model.learned_.scale}


def configuration() -> dict[str, Any]:
    """All settings that the figures depend on."""
    defaults = Settings()
    return {
        "ours": NaturalLangevinClassifier().get_params(),
        "candidates": [one.as_dict() for one in candidates(defaults)],
        "cross_validation": {
            "chains_of_fold": defaults.chains_per_fold,
            "most_held_out": defaults.held_out,
            "draws": defaults.draws,
            "updates": weighing.UPDATES,
            "least_weight": weighing.LEAST_WEIGHT,
            "deviation": weighing.DEVIATION,
        },
        "mlp": {"grid": GRID, "folds": FOLDS, "max_iter": MOST_EPOCHS},
        "test_part": TEST_PART,
        "levels": LEVELS,
        "splits": DATASETS,
    }


def main() -> None:
    """Runs the methods that are missing in the results, and writes after each."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("results/tabular.json"))
    parser.add_argument("--datasets", nargs="+", default=list(DATASETS), choices=list(DATASETS))
    parser.add_argument("--page", type=Path, help="a page whose table is to be replaced")
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=list(METHODS))
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    results: dict[str, Any] = {"rows": []}
    if options.out.exists():
        results = json.loads(options.out.read_text())
        if results["config"] != json.loads(json.dumps(configuration())):
            parser.error(f"{options.out} holds another configuration: give another --out")
    done = {(row["dataset"], row["method"]) for row in results["rows"]}
    wanted = [(n, m) for n in options.datasets for m in options.methods]
    for name, method in (one for one in wanted if one not in done):
        row = run(name, method, DATASETS[name])
        results |= {"config": configuration()} | origin("cpu")
        row["commit"] = results["commit"]
        results["versions"]["scikit-learn"] = sklearn.__version__
        results["rows"].append(row)
        options.out.write_text(json.dumps(results, indent=1) + "\n")
    print(markdown(results))
    if options.page is not None:
        text = options.page.read_text(encoding="utf-8")
        options.page.write_text(with_table(text, results), encoding="utf-8")


if __name__ == "__main__":
    main()
