"""Longer is never worse: the twenty problems at 1, 3 and 10 times the steps of pure defaults.

``python -m natural_langevin.experiments.defaults.longer [--only NAMES] [--times 3]``: test NLL and
its Monte-Carlo error. What is in the file is not run again; any number of processes may share it.
"""

from __future__ import annotations

import argparse
import itertools
import time
from pathlib import Path
from typing import Any

from natural_langevin import Langevin, likelihoods
from natural_langevin._internal.pages import markdown
from natural_langevin.experiments.defaults import record
from natural_langevin.experiments.defaults.twenty import Problem, problems
from natural_langevin.sampling.interrupts import whole_runs

TIMES = (1, 3, 10)
PART = "longer"
#: A difference of fewer errors is none.
ERRORS = 2.0


@whole_runs()
def run(problem: Problem, times: int, steps: int | None) -> dict[str, Any]:
    """Pure defaults, with ``times`` as many steps as the recipe's, which are ``steps``."""
    regression = problem.y.is_floating_point()
    likelihood = likelihoods.Gaussian("rmse") if regression else likelihoods.Categorical()
    began = time.process_time()
    posterior = Langevin(problem.make(0.0, 0), likelihood).sample(
        (problem.x, problem.y), None if steps is None else times * steps, progress=False
    )
    cpu = time.process_time() - began
    scores = posterior.evaluate(problem.x_test, problem.y_test)
    return {
        "steps": posterior.config["steps"] + posterior.config.get("steps_before", 0),
        "nll": scores.nll,
        "nll_error": scores.nll_error,
        "sharpness": posterior.sharpness,
        "cpu_seconds": cpu,
    }


def table(rows: dict[str, Any]) -> str:
    """Markdown: a problem a row, and on how many no longer run is worse by more than its error."""
    lines, worse, whole = [], [], 0
    for name in sorted({key.rpartition(" x ")[0] for key in rows}):
        found = [rows.get(f"{name} x {times}") for times in TIMES]
        each = [f"{r['nll']:.4f} ± {r['nll_error']:.4f}" if r else "" for r in found]
        lines.append((name, f"{found[0]['steps']:,}" if found[0] else "", *each))
        done = [r for r in found if r]
        if len(done) > 1:
            whole += 1
            if not all(
                b["nll"] - a["nll"] <= ERRORS * (a["nll_error"] ** 2 + b["nll_error"] ** 2) ** 0.5
                for a, b in itertools.pairwise(done)
            ):
                worse.append(name)
    columns = ["steps by default", *(f"NLL at {times} x" for times in TIMES)]
    return f"{markdown(columns, lines)}\n\nNot worse within {ERRORS:g} errors on " + (
        f"{whole - len(worse)} of {whole}; worse: {', '.join(worse) or 'none'}."
    )


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=record.FILE)
    parser.add_argument("--only", nargs="*")
    parser.add_argument("--times", type=int, nargs="*", default=TIMES)
    parser.add_argument("--page", type=Path, help="a page with markers for the table")
    options = parser.parse_args()
    for name, make in problems():
        if options.only and name not in options.only:
            continue
        for times in options.times:
            done = record.rows(options.out, PART)
            if f"{name} x {times}" in done:
                continue
            usual = done.get(f"{name} x 1", {}).get("steps")
            if times > 1 and usual is None:  # the recipe's length is its own
                first = run(make(), 1, None)
                record.keep(options.out, PART, f"{name} x 1", first)
                usual = first["steps"]
            row = run(make(), times, usual if times > 1 else None)
            record.keep(options.out, PART, f"{name} x {times}", row)
            print(
                f"{name} x {times}: {row['nll']:.4f} ± {row['nll_error']:.4f}, "
                f"{row['cpu_seconds']:.0f} s", flush=True,
            )  # fmt: skip
    if options.page:
        record.show(options.page, options.out, PART, table)


if __name__ == "__main__":
    main()
