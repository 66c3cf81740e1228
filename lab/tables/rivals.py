"""What others would use for a table: each fits, and predicts class probabilities or distributions.

Everything but NGBoost is scikit-learn's, on standardised inputs where that matters. Regressors that
say a number only get the deviation of residuals that they had no part in (cross-validated, out of
bag, or of the rows that a member of the ensemble did not see).
"""

# ruff: noqa: N803 (scikit-learn calls its inputs X)
from __future__ import annotations

import importlib.util
import time
import warnings
from typing import Any

import numpy as np
import torch
from sklearn.base import clone
from sklearn.compose import TransformedTargetRegressor
from sklearn.ensemble import (
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    RandomForestClassifier,
    RandomForestRegressor,
)
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process import GaussianProcessClassifier, GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from sklearn.model_selection import GridSearchCV, cross_val_predict
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from natural_langevin.sklearn.frames import Array
from natural_langevin.tabular.outcome import Outcome
from natural_langevin.tabular.predictive import Predictive

GRID: dict[str, list[Any]] = {
    "hidden_layer_sizes": [(50,), (100,)],
    "alpha": [1e-4, 1e-1, 1.0],
    "learning_rate_init": [1e-3, 1e-2],
}
FOLDS, MOST_EPOCHS = 3, 200
TREES = 500
PATIENCE = 20
#: Of the deep ensemble: networks at least, and the part of the rows that each does not see.
FEWEST_MEMBERS, LEFT_OUT = 5, 0.1


def mixture(means: Array, deviation: Array, weights: Array) -> Predictive:
    """Of networks with N(means[k], deviation[k]^2): means (network, n), deviation (network,) or
    (network, n)."""
    centre = torch.as_tensor(np.asarray(means), dtype=torch.float64)
    width = torch.as_tensor(np.asarray(deviation), dtype=torch.float64)
    width = width[:, None] if width.ndim == 1 else width
    law = torch.distributions.Normal(centre[..., None], width[..., None])
    return Predictive(Outcome("regression", "constant"), law, torch.as_tensor(weights), flat=True)


def _with_residuals(model: Any, X: Array, y: Array, X_test: Array) -> Predictive:
    """N(prediction, variance of cross-validated residuals)."""
    unseen = cross_val_predict(clone(model), X, y, cv=5)
    deviation = np.sqrt(np.mean((y - unseen) ** 2, keepdims=True))
    return mixture(model.predict(X_test)[None], deviation, np.ones(1))


def tuned_mlp(X: Array, y: Array, X_test: Array, numbers: bool, seed: int, _: float) -> Any:
    """A network whose size, weight decay and learning rate a grid search chooses."""
    options = {"max_iter": MOST_EPOCHS, "random_state": seed}
    if numbers:
        network = make_pipeline(StandardScaler(), MLPRegressor(**options))
        model = TransformedTargetRegressor(network, transformer=StandardScaler())
        prefix, scoring = "regressor__mlpregressor__", "neg_mean_squared_error"
    else:
        model = make_pipeline(StandardScaler(), MLPClassifier(**options))
        prefix, scoring = "mlpclassifier__", "neg_log_loss"
    grid = {prefix + setting: values for setting, values in GRID.items()}
    search = GridSearchCV(model, grid, scoring=scoring, cv=FOLDS).fit(X, y)
    if numbers:
        return _with_residuals(search.best_estimator_, X, y, X_test)
    return search.predict_proba(X_test)


def forest(X: Array, y: Array, X_test: Array, numbers: bool, seed: int, _: float) -> Any:
    """500 trees. A class without votes gets the share of one: else NLL would be infinite."""
    if not numbers:
        p = RandomForestClassifier(TREES, random_state=seed).fit(X, y).predict_proba(X_test)
        return (p + 1 / TREES) / (p + 1 / TREES).sum(1, keepdims=True)
    model = RandomForestRegressor(TREES, oob_score=True, random_state=seed).fit(X, y)
    deviation = np.sqrt(np.mean((y - model.oob_prediction_) ** 2, keepdims=True))
    return mixture(model.predict(X_test)[None], deviation, np.ones(1))


def boosting(X: Array, y: Array, X_test: Array, numbers: bool, seed: int, _: float) -> Any:
    """Histogram gradient boosting, with its defaults."""
    if not numbers:
        model = HistGradientBoostingClassifier(random_state=seed)
        return model.fit(X, y).predict_proba(X_test)
    model = HistGradientBoostingRegressor(random_state=seed)
    return _with_residuals(model.fit(X, y), X, y, X_test)


def natural_boosting(X: Array, y: Array, X_test: Array, numbers: bool, seed: int, _: float) -> Any:
    """NGBoost: boosting by natural gradients of a whole distribution (a package of its own). It
    stops where a tenth of the rows has not been predicted better for PATIENCE rounds; with all of
    its 500 it fails, or is far worse, where classes can be told apart. Where the Fisher matrix is
    singular all the same, it has half as many rounds, and again."""
    import ngboost

    options: dict[str, Any] = {"random_state": seed, "verbose": False, "n_estimators": 500}
    options |= {"validation_fraction": 0.1, "early_stopping_rounds": PATIENCE}
    if numbers:
        law = ngboost.NGBRegressor(**options).fit(X, y).pred_dist(X_test).params
        return mixture(law["loc"][None], law["scale"][None], np.ones(1))
    classes = ngboost.distns.k_categorical(int(y.max()) + 1)
    while True:
        try:
            with np.errstate(all="ignore"):
                model = ngboost.NGBClassifier(Dist=classes, **options).fit(X, y)
            return model.predict_proba(X_test)
        except (ValueError, np.linalg.LinAlgError):
            options["n_estimators"] //= 2
            if not options["n_estimators"]:
                raise


def gaussian_process(X: Array, y: Array, X_test: Array, numbers: bool, seed: int, _: float) -> Any:
    """A squared-exponential kernel of one length, whose settings maximise the evidence."""
    kernel = ConstantKernel(1.0) * RBF(np.sqrt(X.shape[1]), (1e-1, 1e3))
    scaler = StandardScaler().fit(X)
    X, X_test = scaler.transform(X), scaler.transform(X_test)
    if not numbers:
        model = GaussianProcessClassifier(kernel, random_state=seed)
        return model.fit(X, y).predict_proba(X_test)
    model = GaussianProcessRegressor(
        kernel + WhiteKernel(0.5), normalize_y=True, random_state=seed
    ).fit(X, y)
    mean, deviation = model.predict(X_test, return_std=True)
    return mixture(mean[None], deviation[None], np.ones(1))


def deep_ensemble(
    X: Array, y: Array, X_test: Array, numbers: bool, seed: int, budget: float
) -> Any:
    """Networks of one hidden layer of 50, from different starts, as many as fit into the CPU
    seconds that ours took; each is trained on nine tenths of the rows."""
    scaler = StandardScaler().fit(X)
    X, X_test = scaler.transform(X), scaler.transform(X_test)
    rng = np.random.default_rng(seed)
    said: list[Array] = []
    residuals: list[Array] = []
    centre, width = (y.mean(), y.std()) if numbers else (0.0, 1.0)
    classes = 0 if numbers else int(y.max()) + 1
    start = time.process_time()
    while len(said) < FEWEST_MEMBERS or time.process_time() - start < budget:
        order = rng.permutation(len(y))
        out, inside = np.split(order, [max(1, int(LEFT_OUT * len(y)))])
        options = {"hidden_layer_sizes": (50,), "max_iter": MOST_EPOCHS, "random_state": seed * 1000
                   + len(said)}  # fmt: skip
        if numbers:
            member = MLPRegressor(**options).fit(X[inside], (y[inside] - centre) / width)
            said.append(centre + width * member.predict(X_test))
            residuals.append(y[out] - centre - width * member.predict(X[out]))
        else:
            member = MLPClassifier(**options).fit(X[inside], y[inside])
            p = np.zeros((len(X_test), classes))
            p[:, member.classes_] = member.predict_proba(X_test)
            said.append(p)
    if not numbers:
        return np.mean(said, axis=0)
    deviation = np.sqrt(np.mean(np.concatenate(residuals) ** 2))
    return mixture(np.array(said), np.full(len(said), deviation), np.full(len(said), 1 / len(said)))


RIVALS = {
    "mlp": tuned_mlp,
    "forest": forest,
    "boosting": boosting,
    "ngboost": natural_boosting,
    "process": gaussian_process,
    "ensemble": deep_ensemble,
}


def is_installed(name: str) -> bool:
    """Whether a method can be run here: NGBoost is a package of its own."""
    return name != "ngboost" or importlib.util.find_spec(name) is not None


def run_rival(name: str, *arguments: Any) -> Any:
    """Its predictions for the test rows."""
    with warnings.catch_warnings():  # the last epoch's network, or a length at its bound, is fine
        warnings.simplefilter("ignore", ConvergenceWarning)
        return RIVALS[name](*arguments)
