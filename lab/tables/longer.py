"""Longer last runs of tables: ``python -m lab.tables.longer --out FILE``.

Estimators with the defaults on UCI's tables (at most ``--rows`` of them) and generated ones. Their
runs on all rows have each of ``--times`` the usual number of steps, while chains do not agree; what
comes before is the same to the bit. NLL on test rows in deviations of the target, differences to
the first of ``--times`` on the same rows with their standard errors, and CPU-seconds of the fits.
"""

from __future__ import annotations

import math
import time
from functools import partial
from typing import Any
from unittest import mock

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import make_classification, make_friedman1

from lab.command import at_least, study
from lab.results import complete
from lab.uci import data as uci
from natural_langevin.sklearn import NaturalLangevinClassifier, NaturalLangevinRegressor
from natural_langevin.tabular import crossvalidation

CLASSES, FRIEDMAN = "classes", "friedman"
NAMES = (
    "energy", "concrete", "yacht", "boston", "wine", "kin8nm", "power", FRIEDMAN, CLASSES,
)  # fmt: skip
#: Generated rows, of which the last ones are to test on.
GENERATED, TO_TEST = 2_400, 400


def table(name: str, number: int) -> tuple[NDArray[Any], ...]:
    """x and y to learn from, then x and y to test on."""
    if name == FRIEDMAN:
        x, y = make_friedman1(GENERATED, 20, noise=1.0, random_state=number)
    elif name == CLASSES:
        x, y = make_classification(
            GENERATED, 20, n_informative=8, n_redundant=4, n_classes=3, flip_y=0.05,
            random_state=number,
        )  # fmt: skip
    else:
        return uci.split(uci.load(name), number)
    return x[:-TO_TEST], y[:-TO_TEST], x[-TO_TEST:], y[-TO_TEST:]


def row(name: str, number: int, *, times: list[int], rows: int) -> dict[str, Any]:
    """One table and split."""
    x, y, x_test, y_test = table(name, number)
    some = np.random.default_rng(number).permutation(len(y))[:rows]
    x, y = x[some], y[some]
    classes = name == CLASSES
    if not classes:
        y, y_test = ((of.ravel() - y.mean()) / y.std() for of in (y, y_test))
    make = NaturalLangevinClassifier if classes else NaturalLangevinRegressor
    lengths: dict[str, dict[str, Any]] = {}
    first: Any = None
    for factor in times:
        began = time.process_time()
        with mock.patch.object(crossvalidation, "LONGER", factor):
            estimator = make(random_state=0).fit(x, y)
        took = time.process_time() - began
        if classes:
            ln_p = np.log(estimator.predict_proba(x_test)[np.arange(len(y_test)), y_test])
        else:
            ln_p = np.asarray(estimator.predict_dist(x_test).log_prob(y_test)).ravel()
        first = ln_p if first is None else first
        apart = first - ln_p
        configs = [member.posterior.config for member in estimator.learned_.members]
        lengths[str(factor)] = {
            "nll": float(-ln_p.mean()), "apart": float(apart.mean()),
            "error": float(apart.std() / math.sqrt(len(y_test))), "cpu_seconds": took,
            "steps": [one["steps"] + (one.get("steps_before") or 0) for one in configs],
        }  # fmt: skip
    return {"name": name, "split": number, "rows": len(y), "times": lengths}


def main() -> None:
    """Command line."""
    parser = study(__doc__, jobs="tables")
    parser.add_argument("--times", type=at_least(1), nargs="*", default=[1, 2, 3])
    parser.add_argument("--rows", type=at_least(100), default=2_000, help="to learn from, at most")
    parser.add_argument("--splits", type=at_least(1), default=2)
    parser.add_argument("--only", nargs="*", choices=NAMES, default=NAMES)
    given = parser.parse_args()
    settings = {"times": given.times, "rows": given.rows}
    items = [(name, number) for number in range(given.splits) for name in given.only]
    work = partial(row, **settings)
    complete(given.out, settings, items, work, by=("name", "split"), jobs=given.jobs)


if __name__ == "__main__":
    main()
