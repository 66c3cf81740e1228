"""Common base of both estimators: settings, encoding of columns, and the fit.

A fit is ``tabular.recipe.learn`` on the encoded columns, as ``natural-langevin train`` does: one
table, one answer. Predictions are pandas or polars columns, if requested by ``set_output``.
"""

# ruff: noqa: N803 (scikit-learn calls its inputs X)
from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

# ruff: noqa: N803 (scikit-learn calls its inputs X)
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data
from torch import Tensor

from natural_langevin._internal.version import __version__
from natural_langevin.data.table import Table, from_frame, need_pandas, short
from natural_langevin.posterior.posterior import Posterior
from natural_langevin.tabular.explain import (
    Importance,
    PartialDependence,
    partial_dependence,
    permutation_importance,
)
from natural_langevin.tabular.features import Features
from natural_langevin.tabular.learned import CHUNK, Learned
from natural_langevin.tabular.predictive import Predictive
from natural_langevin.tabular.recipe import MOST_REPEATED, learn
from natural_langevin.tabular.settings import SettingError, Settings
from natural_langevin.tabular.survey import fit_features

log = logging.getLogger("natural_langevin")


class NaturalLangevinEstimator(BaseEstimator):  # type: ignore[misc]
    """Base class of the classifier and the regressor; not for direct use.

    ``X`` is (n, features): dense or sparse numbers, NaN for missing values; or a pandas or polars
    frame, whose columns may hold words, dates and missing cells. ``features_.notices`` and the log
    list what was filled, encoded or left out.

    Args:
        hidden_layer_sizes: Units of every hidden layer; () is a linear model. "auto": one layer of
            50 below 500 rows, two otherwise, or a linear model, chosen on held-out rows.
        activation: "relu", "tanh" or "silu".
        prior_variance: "auto": chosen by the recipe of ``Langevin``. A number. "learned": one per
            layer, integrated out. "fan_in": 3 divided by the number of a layer's inputs.
        temperature: "auto" is 1.
        step_size: "auto": chosen by the recipe. A number, or a schedule.
        folds: Folds of the cross-validation that weighs the views of the table (kinds of noise,
            inputs, networks) and calibrates the predictions. 0: none; the first view is used.
        preconditioner: "qdop", "dop", "rmsprop" or "sgld".
        steps: Steps of every chain. "auto": chosen by the recipe.
        chains: Chains of the final runs together.
        batch_size: Rows of a minibatch. "auto": chosen by the recipe.
        seconds: Time limit of a fit, in place of ``steps``.
        random_state: An integer makes the result reproducible.
        verbose: Whether to show progress. None: on a terminal.

    Fitted attributes: ``choice_`` (the views tried, with held-out NLL and weight), ``reason_`` (the
    choice, in words), ``scale_`` (below 1: more confident than the networks alone), ``posteriors_``
    and ``weights_`` (of the views in use), ``posterior_`` (the one of largest weight; its networks
    take ``network_inputs(X)``), ``features_`` (how columns became inputs), ``n_iter_``,
    ``n_features_in_``, ``feature_names_in_``.
    """

    def __init__(
        self,
        hidden_layer_sizes: Sequence[int] | str = Settings.hidden,
        *,
        activation: str = Settings.activation,
        prior_variance: float | str = Settings.prior_variance,
        temperature: float | str = Settings.temperature,
        step_size: float | str = Settings.step_size,
        folds: int = Settings.folds,
        preconditioner: str = Settings.preconditioner,
        task: str = "auto",
        noise: str = Settings.noise,
        log: bool | str = Settings.log,
        steps: int | str = Settings.steps,
        chains: int = Settings.chains,
        batch_size: int | str = Settings.batch_size,
        seconds: float | None = Settings.seconds,
        random_state: int | np.random.RandomState | None = None,
        device: str | None = None,
        verbose: bool | None = None,
    ) -> None:
        self.hidden_layer_sizes = hidden_layer_sizes
        self.activation = activation
        self.prior_variance = prior_variance
        self.temperature = temperature
        self.step_size = step_size
        self.folds = folds
        self.preconditioner = preconditioner
        self.task = task
        self.noise = noise
        self.log = log
        self.steps = steps
        self.chains = chains
        self.batch_size = batch_size
        self.seconds = seconds
        self.random_state = random_state
        self.device = device
        self.verbose = verbose

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.input_tags.allow_nan = True
        return tags

    def __reduce__(self) -> tuple[Any, ...]:
        return _reduced(self, super().__getstate__())

    def set_output(self, *, predict: str = "default") -> Any:
        """Sets the type of predictions: arrays ("default"); a frame of the same kind as ``X``, with
        its index ("same"); or always "pandas" or "polars". scikit-learn's scorers and
        meta-estimators expect arrays."""
        if predict not in OUTPUTS:
            raise ValueError(f"predict must be one of {OUTPUTS}, got {predict!r}")
        self._sklearn_output_config = {"predict": predict}  # which clone() keeps
        return self

    def _answer(self, values: Array, X: Any, names: Sequence[Any]) -> Any:
        output = getattr(self, "_sklearn_output_config", {}).get("predict", "default")
        return answer(values, X, output, names)

    def _named(self, count: int) -> list[Any]:
        """The names of the targets: their column names, or numbers."""
        if len(self._target_names) == count:
            return self._target_names
        return ["prediction"] if count == 1 else [f"prediction {k}" for k in range(count)]

    #: What ``task`` may be; the first is "auto".
    _tasks: tuple[str, ...] = ()
    _target_names: list[Any] = []  # noqa: RUF012 - of estimators that are not fitted
    _of_arrays = False  # which have no names of columns

    def _learn(
        self, table: Table, y: Tensor, weight: Array | None, *, classes: int = 0, task: str = ""
    ) -> None:
        """Encodes the columns and runs the fit."""
        if self.task not in ("auto", *self._tasks):
            raise ValueError(f"task must be one of {('auto', *self._tasks)}, got {self.task!r}")
        settings = self._settings()
        self.features_: Features = fit_features(
            _weighted(table, weight), named=hasattr(self, "feature_names_in_"), at_least_one=True
        )
        for notice in self.features_.notices:
            log.info("%s: %s", type(self).__name__, notice)
        self.learned_: Learned = learn(
            self.features_.encode(table).x,
            y,
            task or (self._tasks[0] if self.task == "auto" else self.task),
            settings,
            classes=classes,
            time=self.features_.time,
            sample_weight=weight,
            device=self.device,
            progress=sys.stderr.isatty() if self.verbose is None else self.verbose,
        )
        self.__dict__.pop("_unreadable", None)
        self.posteriors_ = self.learned_.posteriors
        self.weights_ = self.learned_.weights.numpy()
        self.scale_ = self.learned_.scale
        self.n_iter_ = int(self.learned_.best.config["steps"])
        self.choice_, self.reason_ = self.learned_.choice, self.learned_.reason
        log.info("%s: %s", type(self).__name__, self.reason_)

    def _settings(self) -> Settings:
        seed = int(check_random_state(self.random_state).randint(2**31 - 2))
        names = (
            "activation", "prior_variance", "temperature", "step_size", "folds", "preconditioner",
            "noise", "log", "steps", "chains", "batch_size", "seconds",
        )  # fmt: skip
        given = {name: getattr(self, name) for name in names}
        try:
            return Settings(hidden=self.hidden_layer_sizes, seed=seed, **given)  # type: ignore[arg-type]
        except SettingError as error:
            name = "hidden_layer_sizes" if error.name == "hidden" else error.name
            raise ValueError(f"{name} {error.problem}") from None

    def partial_dependence(self, X: Any, feature: str | int, **options: Any) -> PartialDependence:
        """How the prediction depends on one column, with the networks' disagreement: see
        ``tabular.explain.partial_dependence``."""
        table = self._table(X)
        name = feature if isinstance(feature, str) else table.names[feature]
        return partial_dependence(self.learned_, self.features_, table, name, **options)

    def permutation_importance(self, X: Any, y: Any, **options: Any) -> Importance:
        """The loss of ln p(y) when a column is shuffled, with its standard error: see
        ``tabular.explain.permutation_importance``."""
        table = self._table(X)
        return permutation_importance(
            self.learned_, self.features_, table, self._targets(y), **options
        )

    def _targets(self, y: Any) -> Tensor:
        """As ``learn`` takes them."""
        raise NotImplementedError

    @property
    def posterior_(self) -> Posterior:
        """The posterior of the largest weight."""
        check_is_fitted(self, "learned_")
        return self.learned_.best

    def _checked(
        self, X: Any, y: Any, sample_weight: Any, **options: Any
    ) -> tuple[Table, Any, Array | None]:
        """The table, the targets and the weights of the rows, as scikit-learn checks them."""
        self._target_names, self._of_arrays = name_of(y), not is_frame(X)
        if is_frame(X):
            table = from_frame(X)
            validate_data(self, table.frame, skip_check_array=True)
            from sklearn.utils import check_array

            _check_targets(y, numeric=bool(options.get("y_numeric")))
            y = y.to_numpy() if hasattr(y, "to_numpy") else y  # whole numbers stay whole
            y = check_array(
                y, ensure_2d=False, dtype="numeric" if options.get("y_numeric") else None
            )
            if len(y) != len(table):
                raise ValueError(f"X has {len(table)} rows and y {len(y)}: give one target per row")
        else:
            with _frames_take_words():
                X, y = validate_data(
                    self, X, y, accept_sparse="csr", dtype=np.float64,
                    ensure_all_finite="allow-nan", **options,
                )  # fmt: skip
            table = self._numbers(X)
        if sample_weight is None:
            return table, y, None
        weight = _check_sample_weight(
            sample_weight, table.frame, ensure_non_negative=True, copy=True
        )
        return table, y, weight

    def _table(self, X: Any) -> Table:
        """New rows, as scikit-learn checks them."""
        check_is_fitted(self, "learned_")
        if is_frame(X) and not self._of_arrays:
            return from_frame(X)
        with _frames_take_words():
            X = validate_data(
                self, X, reset=False, accept_sparse="csr", dtype=np.float64,
                ensure_all_finite="allow-nan",
            )  # fmt: skip
        return self._numbers(X)

    def _inputs(self, X: Any) -> Tensor:
        table = self._table(X)
        encoded = self.features_.encode(table)
        for sentence in encoded.strange:
            log.warning("%s", sentence)
        bad = np.flatnonzero(~encoded.usable)
        for row in bad[:5]:
            why = encoded.notes[row].removesuffix(", not predicted")
            log.warning("row %d: %s; it is predicted as an average row", row, why)
        if len(bad) > 5:
            log.warning("and so do %d other rows: see features_.encode", len(bad) - 5)
        return encoded.x

    def _asked(self, X: Any, ask: Callable[[Predictive], Array]) -> Array:
        """``ask`` of the rows' distributions, in chunks of rows: each distribution has one
        component per network and noise level."""
        flat = getattr(self, "_flat", False)
        parts = self._inputs(X).split(CHUNK)
        return np.concatenate([ask(self.learned_.predictive(x, flat=flat)) for x in parts])

    def network_inputs(self, X: Any) -> Tensor:
        """(n, inputs) as ``posterior_`` and its networks take them."""
        return self.learned_.inputs(self._inputs(X))

    def _numbers(self, X: Any) -> Table:
        """Dense or sparse numbers as a table: standardised columns are dense either way."""
        X = X.toarray() if hasattr(X, "toarray") else X
        names = getattr(self, "feature_names_in_", [f"x{k}" for k in range(X.shape[1])])
        return Table("X", need_pandas().DataFrame(X, columns=list(names)), "row")


@contextmanager
def _frames_take_words() -> Iterator[None]:
    """scikit-learn's error about words in an array, with a remedy added."""
    try:
        yield
    except ValueError as error:
        if "could not convert string to float" not in str(error):
            raise
        raise ValueError(
            f"{error}: give X as a pandas frame with named columns, which may hold words and dates"
        ) from error


def _check_targets(y: Any, *, numeric: bool) -> None:
    """Raises an error that names the row if a target is missing or, for a regression, not a
    number."""
    pd = need_pandas()
    rows = pd.DataFrame(np.asarray(y))
    missing = rows.isna().any(axis=1).to_numpy()
    if missing.any():
        raise ValueError(
            f"y contains NaN: it is missing in {missing.sum():,} of {len(rows):,} rows (first: row "
            f"{missing.argmax()}); leave these rows out of X and y"
        )
    if numeric:
        strange = rows.apply(pd.to_numeric, errors="coerce").isna().to_numpy()
        if strange.any():
            row, column = np.argwhere(strange)[0]
            raise ValueError(
                f"y is {short(str(rows.iloc[row, column]))} in row {row}, no number: convert it to "
                "numbers, or read the file with natural-langevin train, which does"
            )


def _weighted(table: Table, weight: Array | None) -> Table:
    """The rows that statistics are computed from: with integer weights, each repeated that
    often, as long as a fit would repeat them."""
    if weight is None:
        return table
    whole = bool((weight == np.round(weight)).all()) and weight.sum() <= MOST_REPEATED
    return table.take(np.repeat(np.arange(len(table)), weight.astype(int) if whole else weight > 0))


Array = NDArray[Any]

#: What ``set_output(predict=...)`` takes.
OUTPUTS = ("default", "same", "pandas", "polars")


def is_frame(X: Any) -> bool:
    """Whether it is a pandas or polars frame: something with named columns of their own types."""
    return hasattr(X, "columns") and hasattr(X, "dtypes") and hasattr(X, "to_dict")


def kind_of(X: Any) -> str:
    """What ``X`` is: "pandas", "polars" or "array"."""
    if not is_frame(X):
        return "array"
    return "pandas" if hasattr(X, "iloc") else "polars"


def answer(values: Array, X: Any, output: str, names: Sequence[Any]) -> Any:
    """``values`` (n,) or (n, k) about the rows of ``X``: as they are with ``output`` "default",
    else as a column or as k columns of these names, with the index of a pandas frame."""
    kind = kind_of(X) if output == "same" else output
    if kind in ("default", "array") or values.ndim > 2:
        return values
    if kind == "pandas":
        import pandas as pd

        index = X.index if kind_of(X) == "pandas" else None
        if values.ndim == 1:
            return pd.Series(values, index=index, name=names[0])
        return pd.DataFrame(values, index=index, columns=list(names))
    import polars as pl

    if values.ndim == 1:
        return pl.Series(str(names[0]), values)
    return pl.DataFrame({str(name): values[:, k] for k, name in enumerate(names)})


def name_of(y: Any) -> list[Any]:
    """The names of targets that came as a column or a frame; [] of arrays."""
    if hasattr(y, "columns"):
        return list(y.columns)
    return [y.name] if getattr(y, "name", None) is not None else []


class OtherVersionWarning(UserWarning):
    """An estimator was pickled by another version of the library."""


def _begin(kind: type, version: str) -> Any:
    """An empty estimator, which pickle fills afterwards."""
    if version != __version__:
        warnings.warn(
            f"this {kind.__name__} was pickled by natural-langevin {version}, and this is "
            f"{__version__}: answers may differ or fail. To be sure, fit it again, or use it in "
            f"natural-langevin=={version}",
            OtherVersionWarning,
            stacklevel=2,
        )
    return object.__new__(kind)


def _reduced(model: BaseEstimator, state: dict[str, Any]) -> tuple[Any, ...]:
    """How pickle writes the estimator."""
    return _begin, (type(model), __version__), state
