"""What others would use for a table, tuned by three-fold cross-validation of the training rows.

scikit-learn's linear model, random forest and histogram gradient boosting, CatBoost and NGBoost;
``networks`` has the rest. A regressor that says a number only gets the law that its held-out
residuals are likeliest under: Student's t of y or, of positive targets, of ln y; of counts a
negative binomial; where a tenth of the amounts is zero, a classifier says how probable zero is and
the regressor learns the logarithm of the others. It is scored twice: its density by the setting of
the best held-out NLL, its mean by that of the best held-out RMSE.
"""

# ruff: noqa: N803 (scikit-learn calls its inputs X)
from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from sklearn import ensemble, linear_model
from sklearn.model_selection import KFold, StratifiedKFold

from lab.tables import networks
from lab.tables.laws import Amounts, Array, Counts, of_counts, of_residuals

#: Rows that settings are compared on, and these times the classes; all rows are learned from.
FOLDS, MOST_TUNED, MOST_CELLS = 3, 4_000, 40_000
TREES = 100
#: The part of zeros from which they are a part of the law.
ZEROS = 0.1
#: Rows and classes beyond which NGBoost takes too long: it fits K trees a round.
NGBOOST_MOST = (10_000, 5)
Make = Callable[[], Any]


class Inputs(NamedTuple):
    """Training and test rows as numbers, and which columns hold numbers of categories."""

    x: Array
    x_test: Array
    categories: list[int]


def is_installed(method: str) -> bool:
    """Whether a method can be run here."""
    import importlib.util

    package = {"laplace-torch": "laplace", "CatBoost": "catboost", "NGBoost": "ngboost",
               "IVON": "ivon"}.get(method)  # fmt: skip
    return package is None or importlib.util.find_spec(package) is not None


def dates_as_numbers(x: pd.DataFrame) -> pd.DataFrame:
    """Every date as days, day of the year, day of the week and hour."""
    parts = {}
    for name in x.columns:
        if x[name].dtype.kind != "M":
            parts[name] = x[name]
            continue
        when = x[name].dt
        parts[f"{name}: days"] = (x[name] - pd.Timestamp("2000-01-01")) / pd.Timedelta(days=1)
        parts[f"{name}: of the year"] = when.dayofyear + when.hour / 24
        parts[f"{name}: of the week"] = when.dayofweek
        parts[f"{name}: hour"] = when.hour + when.minute / 60
    return pd.DataFrame(parts)


def for_trees(x: pd.DataFrame, x_test: pd.DataFrame) -> Inputs:
    """Words as numbers in the order of their frequency; missing cells stay missing."""
    x, x_test = dates_as_numbers(x), dates_as_numbers(x_test)
    words = [k for k, name in enumerate(x.columns) if x[name].dtype.kind not in "ifub"]
    columns = []
    for k, name in enumerate(x.columns):
        if k in words:
            order = {word: n for n, word in enumerate(x[name].value_counts().index)}
            columns.append((x[name].map(order), x_test[name].map(order)))
        else:
            columns.append((x[name], x_test[name]))
    a, b = (np.column_stack([c[i].to_numpy(dtype=np.float64) for c in columns]) for i in (0, 1))
    return Inputs(a, b, words)


def for_smooth(x: pd.DataFrame, x_test: pd.DataFrame) -> Inputs:
    """Standardised numbers, their logarithms where they are positive and skewed, a column for every
    word, missing cells filled and marked, seasons as waves."""
    x, x_test = dates_as_numbers(x), dates_as_numbers(x_test)
    both = pd.concat([x, x_test], keys=("a", "b"))
    columns: list[Array] = []
    for name in both.columns:
        column, learned = both[name], x[name]
        if column.dtype.kind not in "ifub":
            words = learned.value_counts()
            columns += [(column == w).to_numpy(float) for w in words.index[words >= 2][:100]]
            continue
        filled = column.fillna(learned.median()).to_numpy(float)
        columns.append(filled)
        if learned.isna().any():
            columns.append(column.isna().to_numpy(float))
        if learned.min() > 0 and learned.skew() > 2:
            columns.append(np.log(np.maximum(filled, float(learned.min()) / 2)))
        for end, period in (("of the year", 365.25), ("of the week", 7.0), ("hour", 24.0)):
            if str(name).endswith(f": {end}"):
                waves = [2 * np.pi * k * filled / period for k in (1, 2)]
                columns += [f(w) for w in waves for f in (np.sin, np.cos)]
    z = np.column_stack(columns)
    a = z[: len(x)]
    deviation = a.std(0)
    z = (z - a.mean(0)) / np.where(deviation > 0, deviation, 1.0)
    return Inputs(z[: len(x)], np.clip(z[len(x) :], -10, 10), [])


class Family(NamedTuple):
    """One kind of model: what it is given, and its settings, each as a function that makes it."""

    inputs: Callable[[pd.DataFrame, pd.DataFrame], Inputs]
    numbers: Callable[[Inputs, int], list[Make]]
    counts: Callable[[Inputs, int], list[Make]]
    classes: Callable[[Inputs, int], list[Make]]


def _grid(model: Any, settings: Mapping[str, Any], **fixed: Any) -> list[Make]:
    return [
        partial(model, **dict(zip(settings, some, strict=True)), **fixed)
        for some in product(*settings.values())
    ]


def _linear(kind: str) -> Callable[[Inputs, int], list[Make]]:
    if kind == "number":
        return lambda i, s: _grid(linear_model.Ridge, {"alpha": [0.1, 1.0, 10.0, 100.0]})
    if kind == "count":
        return lambda i, s: _grid(
            linear_model.PoissonRegressor, {"alpha": [1e-3, 1e-2, 0.1, 1.0]}, max_iter=500
        )
    return lambda i, s: _grid(
        linear_model.LogisticRegression, {"C": [0.01, 0.1, 1.0, 10.0]}, max_iter=300
    )


def _forest(model: Any) -> Callable[[Inputs, int], list[Make]]:
    settings = {"min_samples_leaf": [1, 5, 20], "max_features": [0.33, 1.0]}
    return lambda i, seed: _grid(model, settings, n_estimators=TREES, random_state=seed)


def _boosting(model: Any, **fixed: Any) -> Callable[[Inputs, int], list[Make]]:
    settings = {"learning_rate": [0.05, 0.15], "max_leaf_nodes": [5, 31]}
    return lambda i, seed: _grid(
        model, settings, max_iter=250, early_stopping=True, random_state=seed,
        categorical_features=[k for k in i.categories if np.nanmax(i.x[:, k]) < 250], **fixed,
    )  # fmt: skip


POINTS = {
    "ridge or logistic": Family(for_smooth, *(_linear(k) for k in ("number", "count", "class"))),
    "random forest": Family(
        for_trees, _forest(ensemble.RandomForestRegressor), _forest(ensemble.RandomForestRegressor),
        _forest(ensemble.RandomForestClassifier),
    ),
    "HistGradientBoosting": Family(
        for_trees, _boosting(ensemble.HistGradientBoostingRegressor),
        _boosting(ensemble.HistGradientBoostingRegressor, loss="poisson"),
        _boosting(ensemble.HistGradientBoostingClassifier),
    ),
}  # fmt: skip


def held_out(make: Make, X: Array, y: Array, *, classes: int = 0) -> Array:
    """Cross-validated predictions, of classes probabilities."""
    folds: Any = KFold(FOLDS, shuffle=True, random_state=0)
    if classes:
        folds = StratifiedKFold(FOLDS, shuffle=True, random_state=0)
    found = np.zeros((len(y), classes) if classes else len(y))
    for a, b in folds.split(X, y):
        model = make().fit(X[a], y[a])
        found[b] = probabilities(model, X[b], classes) if classes else model.predict(X[b])
    return found


def probabilities(model: Any, X: Array, classes: int) -> Array:
    """For every class; a class without votes has a small share, or NLL would be infinite."""
    p = np.zeros((len(X), classes))
    p[:, np.asarray(model.classes_, dtype=int)] = model.predict_proba(X)
    p = np.maximum(p, 0.5 / TREES / classes if hasattr(model, "estimators_") else 1e-12)
    return p / p.sum(1, keepdims=True)


def _some(X: Array, y: Array, classes: int = 1) -> tuple[Array, Array]:
    most = min(MOST_TUNED, MOST_CELLS // classes)
    rows = np.random.default_rng(0).permutation(len(y))[:most]
    return X[rows], y[rows]


def classify(makes: list[Make], X: Array, y: Array, X_test: Array, classes: int) -> Array:
    """Probabilities of the setting that cross-validation prefers."""
    some, their = _some(X, y, classes)

    def nll(make: Make) -> float:
        p = held_out(make, some, their, classes=classes)
        return float(-np.log(p[np.arange(len(their)), their]).mean())

    best = min(makes, key=nll) if len(makes) > 1 else makes[0]
    return probabilities(best().fit(X, y), X_test, classes)


def number(makes: list[Make], X: Array, y: Array, X_test: Array, *, counts: bool) -> Any:
    """The law of the setting (and scale) with the best held-out NLL, whose mean is that of the
    setting with the best held-out RMSE."""
    some, their = _some(X, y)
    tried: list[Any] = []

    def attempt(make: Make, log: bool) -> None:
        said = held_out(make, some, np.log(their) if log else their)
        law = of_counts(said, their) if counts else of_residuals(said, their, log=log)
        mean, smear = said, 1.0
        if log:
            mean = np.exp(np.minimum(said, 700))
            smear = float(their.sum() / mean.sum())
        rmse = np.sqrt(np.mean((smear * mean - their) ** 2))
        tried.append((-law.log_prob(their).mean(), rmse, smear, make, log, law))

    for log in (False, True) if their.min() > 0 and not counts else (False,):
        attempt(makes[0], log)  # the scale by the first settings, the others on that scale
    for make in makes[1:]:
        attempt(make, min(tried, key=lambda t: t[0])[4])

    def refit(one: Any) -> Array:
        return one[3]().fit(X, np.log(y) if one[4] else y).predict(X_test)

    sharp, close = min(tried, key=lambda t: t[0]), min(tried, key=lambda t: t[1])
    said = refit(sharp)
    mean = said if close is sharp else refit(close)
    mean = close[2] * np.exp(np.minimum(mean, 700)) if close[4] else mean
    if counts:
        return Counts(said[None], sharp[5].size, mean)
    return Amounts(said[None], sharp[5].scale, sharp[5].tails, sharp[4], given_mean=mean)


def point(
    family: Family, x: pd.DataFrame, y: Array, x_test: pd.DataFrame, kind: str, seed: int
) -> Any:
    """A law, or class probabilities, by one family of models."""
    given = family.inputs(x, x_test)
    X, X_test, _ = given
    if kind == "class":
        return classify(family.classes(given, seed), X, y, X_test, int(y.max()) + 1)
    if kind == "count":
        return number(family.counts(given, seed), X, y, X_test, counts=True)
    plain = number(family.numbers(given, seed), X, y, X_test, counts=False)
    if not has_zeros(y):
        return plain
    zero = classify(family.classes(given, seed), X, (y == 0).astype(int), X_test, 2)[:, 1]
    amount = number(family.numbers(given, seed), X[y > 0], y[y > 0], X_test, counts=False)
    return Amounts(
        amount.centre, amount.scale, amount.tails, amount.log, zero[None], given_mean=plain.mean
    )


def has_zeros(y: Array) -> bool:
    """Whether amounts have a mass at zero."""
    return bool(y.min() >= 0 and (y == 0).mean() >= ZEROS)


def catboost(x: pd.DataFrame, y: Array, x_test: pd.DataFrame, kind: str, seed: int) -> Any:
    """CatBoost with early stopping on a fifth: of classes, or of a mean and a variance (of the
    logarithm where held-out rows prefer that); of counts Poisson's."""
    import catboost as package

    x, x_test = dates_as_numbers(x), dates_as_numbers(x_test)
    words = [name for name in x.columns if x[name].dtype.kind not in "ifub"]
    for word in words:
        for part in (x, x_test):
            part[word] = part[word].astype(object).fillna("?").astype(str)
    rows = np.random.default_rng(seed).permutation(len(y))
    out, inside = np.split(rows, [len(y) // 5])
    options = {"random_seed": seed, "verbose": False, "thread_count": 1, "cat_features": words,
               "allow_writing_files": False, "iterations": 1000}  # fmt: skip
    if kind == "class" and y.max() >= 10:
        options["iterations"] = 200

    def fit(model: Any, target: Array, among: Array, **more: Any) -> Any:
        a, b = inside[np.isin(inside, among)], out[np.isin(out, among)]
        fits = [
            model(**options, depth=depth, **more).fit(
                x.iloc[a], target[a], eval_set=(x.iloc[b], target[b]), early_stopping_rounds=30)
            for depth in (4, 6)
        ]  # fmt: skip
        return min(fits, key=lambda m: next(iter(m.get_best_score()["validation"].values())))

    every = np.arange(len(y))
    if kind == "class":
        binary = y.max() == 1
        model = fit(
            package.CatBoostClassifier,
            y,
            every,
            loss_function="Logloss" if binary else "MultiClass",
        )
        return model.predict_proba(x_test)
    if kind == "count":
        model = fit(package.CatBoostRegressor, y, every, loss_function="Poisson")
        size = of_counts(model.predict(x.iloc[out]), y[out]).size
        return Counts(model.predict(x_test)[None], size)
    mean = fit(package.CatBoostRegressor, y, every, loss_function="RMSE").predict(x_test)
    zero, among = None, every
    if has_zeros(y):
        none = fit(package.CatBoostClassifier, (y == 0).astype(int), every, loss_function="Logloss")
        zero, among = none.predict_proba(x_test)[None, :, 1], np.flatnonzero(y > 0)
    both = []
    for log in (False, True) if y[among].min() > 0 else (False,):
        target = np.where(y > 0, np.log(np.where(y > 0, y, 1.0)), 0.0) if log else y
        model = fit(package.CatBoostRegressor, target, among, loss_function="RMSEWithUncertainty")

        def law(rows: Any, model: Any = model, log: bool = log) -> Amounts:
            said = model.predict(rows)
            return Amounts(said[None, :, 0], np.sqrt(np.maximum(said[None, :, 1], 1e-12)), log=log)

        seen = out[np.isin(out, among)]
        both.append((-law(x.iloc[seen]).log_prob(y[seen]).mean(), law, log))
    _, chosen, log = min(both, key=lambda b: b[0])
    found = chosen(x_test)
    return Amounts(found.centre, found.scale, log=log, zero=zero, given_mean=mean)


def ngboost(x: pd.DataFrame, y: Array, x_test: pd.DataFrame, kind: str, seed: int) -> Any:
    """NGBoost with early stopping on a tenth; of positive targets normal or log-normal, as held-out
    rows prefer. Classes where its Fisher matrix is singular have half as many rounds, and again;
    counts are Poisson's."""
    import ngboost as package
    from ngboost.distns import LogNormal, Normal, Poisson, k_categorical

    if len(y) > NGBOOST_MOST[0] or (kind == "class" and y.max() + 1 > NGBOOST_MOST[1]):
        return None
    X, X_test, _ = for_smooth(x, x_test)
    options: dict[str, Any] = {"random_state": seed, "verbose": False, "n_estimators": 500,
                               "validation_fraction": 0.1, "early_stopping_rounds": 20}  # fmt: skip

    def classes(target: Array) -> Array:
        some = dict(options)
        while True:
            try:
                with np.errstate(all="ignore"):
                    law = k_categorical(int(target.max()) + 1)
                    model = package.NGBClassifier(Dist=law, **some).fit(X, target)
                    return model.predict_proba(X_test)
            except (ValueError, np.linalg.LinAlgError):
                some["n_estimators"] //= 2
                if not some["n_estimators"]:
                    raise

    if kind == "class":
        return classes(y)
    if kind == "count":
        model = package.NGBRegressor(Dist=Poisson, **options).fit(X, y.astype(int))
        return Counts(model.pred_dist(X_test).params["mu"][None], np.full((1, 1), 1e8))
    zero, among = None, np.full(len(y), True)
    if has_zeros(y):
        zero, among = classes((y == 0).astype(int))[None, :, 1], y > 0
    a, b = np.split(np.flatnonzero(among), [int(0.8 * among.sum())])
    kinds = [Normal, LogNormal] if y[among].min() > 0 else [Normal]

    def nll(law: Any) -> float:
        model = package.NGBRegressor(Dist=law, **options).fit(X[a], y[a])
        return float(-model.pred_dist(X[b]).logpdf(y[b]).mean())

    chosen = min(kinds, key=nll) if len(kinds) > 1 else Normal
    law = package.NGBRegressor(Dist=chosen, **options).fit(X[among], y[among]).pred_dist(X_test)
    if chosen is LogNormal:
        s, scale = law.params["s"], law.params["scale"]
        return Amounts(np.log(scale)[None], s[None], log=True, zero=zero, most=2 * y.max())
    mean = None
    if zero is not None:
        mean = package.NGBRegressor(Dist=Normal, **options).fit(X, y).predict(X_test)
    loc, scale = law.params["loc"], law.params["scale"]
    return Amounts(loc[None], scale[None], zero=zero, given_mean=mean)


def _network(method: str) -> Callable[..., Any]:
    def run(x: pd.DataFrame, y: Array, x_test: pd.DataFrame, kind: str, seed: int) -> Any:
        given = for_smooth(x, x_test)
        return networks.predict(
            method, given.x, y, given.x_test, kind, seed, zeros=kind == "number" and has_zeros(y)
        )

    return run


RIVALS: dict[str, Callable[..., Any]] = {
    **{name: partial(point, family) for name, family in POINTS.items()},
    **{name: _network(name) for name in networks.METHODS},
    "CatBoost": catboost,
    "NGBoost": ngboost,
}


def run_rival(name: str, *arguments: Any) -> Any:
    """Its law or probabilities for the test rows; None where it has none for such a table."""
    with warnings.catch_warnings():  # the last epoch's model, or one of few rows, is fine
        warnings.simplefilter("ignore")
        return RIVALS[name](*arguments)
