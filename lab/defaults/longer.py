"""Longer is never worse: the twenty problems at 1, 3 and 10 times the steps of pure defaults.

``python -m lab.defaults.longer [--only NAMES] [--times 3] [--seeds 0 1]``:
test NLL and its Monte-Carlo error, in the mean over seeds, that of the trial of the prior included.
What is in the file is not run again; any number of processes may share it.
"""

from __future__ import annotations

import itertools
import math
import re
import statistics
from typing import Any

from lab.defaults import record
from lab.defaults.problems import Problem, by_defaults, problems, steps_of
from lab.pages import markdown

TIMES = (1, 3, 10)
PART = "longer"
#: A difference of fewer errors is none.
ERRORS = 2.0


def run(problem: Problem, times: int, steps: int | None, seed: int = 0) -> dict[str, Any]:
    """Pure defaults, with ``times`` as many steps as the recipe's, which are ``steps``."""
    posterior, cpu = by_defaults(problem, seed, None if steps is None else times * steps)
    scores = posterior.evaluate(problem.x_test, problem.y_test)
    return {
        "steps": steps_of(posterior),
        "nll": scores.nll,
        "nll_error": scores.nll_error,
        "sharpness": posterior.sharpness,
        "cpu_seconds": cpu,
    }


def key(name: str, times: int, seed: int = 0) -> str:
    """The row's name in the file.

    >>> key("iris", 3), key("iris", 3, 1)
    ('iris x 3', 'iris seed 1 x 3')
    """
    return f"{name} seed {seed} x {times}" if seed else f"{name} x {times}"


def pooled(rows: list[dict[str, Any]]) -> dict[str, Any] | None:
    """The mean of all seeds, and its error: by what the seeds differ, or by what the runs know of
    themselves, whichever is more."""
    if not rows:
        return None
    nll, errors = ([row[k] for row in rows] for k in ("nll", "nll_error"))
    error = math.hypot(*errors) / len(rows)
    if len(rows) > 1:
        error = max(error, statistics.stdev(nll) / len(rows) ** 0.5)
    return {"steps": rows[0]["steps"], "nll": statistics.fmean(nll), "nll_error": error}


def table(rows: dict[str, Any]) -> str:
    """Markdown: a problem a row, and on how many no longer run is worse by more than its error."""
    lines, worse, whole = [], [], 0
    seeds = sorted({int(k) for k in re.findall(r" seed (\d+) x ", "\n".join(rows))} | {0})
    for name in sorted({row.rpartition(" x ")[0].partition(" seed ")[0] for row in rows}):
        # A seed that lacks a length would be compared with others.
        own = [k for k in seeds if not k or all(key(name, times, k) in rows for times in TIMES)]
        names = [[key(name, times, seed) for seed in own] for times in TIMES]
        found = [pooled([rows[k] for k in keys if k in rows]) for keys in names]
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
    parser = record.parser(__doc__)
    parser.add_argument("--times", type=int, nargs="*", default=TIMES)
    parser.add_argument("--seeds", type=int, nargs="*", default=[0])
    options = parser.parse_args()
    for name, make in problems():
        if options.only and name not in options.only:
            continue
        for seed, times in itertools.product(options.seeds, options.times):
            done = record.rows(options.out, PART)
            if key(name, times, seed) in done:
                continue
            usual = done.get(key(name, 1, seed), {}).get("steps")
            if times > 1 and usual is None:  # the recipe's length is its own
                first = run(make(), 1, None, seed)
                record.keep(options.out, PART, key(name, 1, seed), first)
                usual = first["steps"]
            row = run(make(), times, usual if times > 1 else None, seed)
            record.keep(options.out, PART, key(name, times, seed), row)
            print(
                f"{key(name, times, seed)}: {row['nll']:.4f} ± {row['nll_error']:.4f}, "
                f"{row['cpu_seconds']:.0f} s", flush=True,
            )  # fmt: skip
    if options.page:
        record.show(options.page, options.out, PART, table)


if __name__ == "__main__":
    main()
