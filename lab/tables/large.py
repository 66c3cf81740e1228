"""A table of a million rows: ``python -m lab.tables.large [ROWS]`` says seconds, memory and scores.

Ten numbers, two columns of words and a date; the target is a number whose noise depends on a
column, or a class. Scored on 20,000 other rows, beside ridge or logistic regression and
HistGradientBoosting.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from typing import Any

import numpy as np
import pandas as pd

from lab.tables.compare import class_scores, number_scores, predicted

TESTED = 20_000


def frame(rows: int, seed: int = 0) -> tuple[pd.DataFrame, Any, Any]:
    """Columns, a number and a class of every row."""
    generator = np.random.default_rng(seed)
    x = generator.standard_normal((rows, 10))
    towns, kinds = generator.integers(0, 12, rows), generator.integers(0, 4, rows)
    days = generator.integers(0, 2000, rows)
    inner = np.tanh(x @ generator.standard_normal((10, 20)) / 2) @ generator.standard_normal(20)
    mean = inner + 0.5 * (towns % 5) + np.sin(2 * np.pi * days / 365.25) * (kinds == 2)
    number = mean + np.exp(0.5 * x[:, 0] - 1) * generator.standard_normal(rows)
    label = (mean + generator.logistic(size=rows) > np.median(mean)).astype(int)
    columns = pd.DataFrame(x, columns=[f"x{k}" for k in range(10)])
    columns["town"] = np.array([f"town {k}" for k in range(12)])[towns]
    columns["kind"] = np.array(list("abcd"))[kinds]
    columns["day"] = pd.Timestamp("2018-01-01") + pd.to_timedelta(days, unit="D")
    return columns, number, label


def main() -> None:
    """One line for every method and target."""
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    columns, number, label = frame(rows + TESTED)
    x, x_test = columns[:rows], columns[rows:].reset_index(drop=True)
    for kind, y in (("class", label), ("number", number)):
        for method in ("ours", "ridge or logistic", "HistGradientBoosting"):
            began, cpu = time.perf_counter(), time.process_time()
            said, _ = predicted(method, kind, x, y[:rows], x_test, 0)
            seconds = time.perf_counter() - began, time.process_time() - cpu
            tested = y[rows:]
            scores = class_scores(said, tested) if kind == "class" else number_scores(
                said, tested, step=0.0
            )  # fmt: skip
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
            print(json.dumps({
                "rows": rows, "target": kind, "method": method, "seconds": round(seconds[0], 1),
                "cpu_seconds": round(seconds[1], 1), "peak_GB": round(peak, 2),
                "nll": float(scores["nll"].mean()),
                "off": float(np.sqrt(np.mean(scores["off"] ** 2))),
            }), flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
