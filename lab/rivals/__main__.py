"""Test NLL, accuracy, calibration and strangers, by method, in the same seconds.

    python -m lab.rivals --fashion fashion.npz --shakespeare text.txt --seconds 20 60 --seeds 1 \\
        --out results/rivals.json --page lab/notes/rivals.md --plot docs/rivals.svg

Every row is a process; its seconds begin when the data are on the device and end when the predictor
is returned: tuning, compiling and recording included, importing not. A row that fails says why.
``--together`` rows share the device at a time, and say so; they run beside each other, and not in
turns, where CUDA's multi-process service is started (CUDA_MPS_PIPE_DIRECTORY). ``--budget`` stops
before rows that would not end in so many seconds.
"""

from __future__ import annotations

import argparse
import itertools
import json
import logging
import math
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch

from lab.command import at_least, guarded, options, publish, say, show
from lab.gpu import synchronise
from lab.jobs import NoAnswerError, answer, dismiss, started
from lab.pages import markdown, with_part
from lab.results import open_results, write_results
from lab.rivals.methods import LEFT_OUT, METHODS
from lab.rivals.problems import PROBLEMS
from natural_langevin import metrics
from natural_langevin._internal.extras import new_figure
from natural_langevin.cli.experiments.origin import origin

COLUMNS = ("seconds", "method", "took", "NLL", "NLL above ours", "accuracy", "ECE", "OOD AUROC",
           "agreement", "total variation", "seeds")  # fmt: skip
KEYS = ("problem", "method", "budget", "seed")


def row(problem: str, path: Path, method: str, seconds: float, seed: int, device: str,
        rows: int | None, *, waits: bool = False) -> dict[str, Any]:  # fmt: skip
    """One method on one problem; with ``waits``, when a line comes in."""
    given = PROBLEMS[problem](path, rows)
    if waits:
        sys.stdin.readline()
    given = given.to(device)
    torch.zeros(1, device=device).add_(1)
    synchronise(device)
    began = time.perf_counter()
    predict = METHODS[method](given, seconds, seed)
    synchronise(device)
    took = time.perf_counter() - began
    p, y = predict(given.test_x).detach().float().cpu(), given.test_y.cpu()
    p, y = p.flatten(0, -2), y.flatten()
    found: dict[str, Any] = {
        "problem": problem, "method": method, "budget": seconds, "seed": seed, "took": took,
        "nll": metrics.nll(p, y), "accuracy": metrics.accuracy(p, y),
        "ece": metrics.expected_calibration_error(p, y), "confidence": float(p.amax(-1).mean()),
        "predicting": time.perf_counter() - began - took,
    }  # fmt: skip
    if given.reference is not None:
        reference = given.reference.cpu()
        found["agreement"] = metrics.agreement(p, reference)
        found["total variation"] = metrics.total_variation(p, reference)
    if given.outside is not None:
        q = predict(given.outside).detach().float().cpu()
        inside, outside = (-(v * v.clamp_min(1e-30).log()).sum(-1) for v in (p, q))
        found["ood"] = metrics.ood_auroc(inside, outside)
    bad = [k for k, v in found.items() if isinstance(v, float) and not math.isfinite(v)]
    if bad:
        why = (
            f"{', '.join(bad)} not finite; {int((~p.isfinite()).sum())} of {p.numel()} predictions"
        )
        return {k: found[k] for k in KEYS} | {"error": why}
    return found


def summary(rows: list[dict[str, Any]]) -> list[list[str]]:
    """A line for every problem, time and method: means over seeds with their spread; the NLL above
    ours is the mean over seeds that both have, with its error."""
    lines, own = [], {(r["problem"], r["budget"], r["seed"]): r for r in rows if _ours(r)}
    keys = dict.fromkeys((r["problem"], r["budget"], r["method"]) for r in rows)
    for key in sorted(keys, key=lambda k: (k[0], k[1])):
        same = [r for r in rows if (r["problem"], r["budget"], r["method"]) == key]
        fine = [r for r in same if "nll" in r]
        if not fine:
            lines.append([key[0], f"{key[1]:g}", key[2], same[0]["error"][:60], *[""] * 7, "0"])
            continue
        pairs = [(r, own.get((r["problem"], r["budget"], r["seed"]))) for r in fine]
        above = [r["nll"] - one["nll"] for r, one in pairs if one is not None and one is not r]
        error = f" ± {stdev(above) / len(above) ** 0.5:.4f}" if len(above) > 1 else ""

        def cell(name: str, digits: int, fine: list[dict[str, Any]] = fine) -> str:
            values = [r[name] for r in fine if name in r]
            if not values:
                return ""
            spread = f" ± {stdev(values):.{digits}f}" if len(values) > 1 else ""
            return f"{mean(values):.{digits}f}{spread}"

        shown = [cell("took", 0), cell("nll", 4), f"{mean(above):+.4f}{error}" if above else "",
                 cell("accuracy", 4), cell("ece", 3)]  # fmt: skip
        shown += [cell("ood", 3), cell("agreement", 4), cell("total variation", 4)]
        lines.append([key[0], f"{key[1]:g}", key[2], *shown, str(len(fine))])
    return lines


def _ours(row: dict[str, Any]) -> bool:
    return row["method"] == "ours" and "nll" in row


def with_table(text: str, results: Mapping[str, Any]) -> str:
    """A page with its table replaced."""
    return with_part(text, "rivals", markdown(COLUMNS, summary(results["rows"])))


def plot(results: Mapping[str, Any], path: Path) -> None:
    """NLL over time, a line for every method, a panel for every problem."""
    rows = [r for r in results["rows"] if "nll" in r]
    problems = sorted({r["problem"] for r in rows})
    figure = new_figure(figsize=(5 * len(problems), 4))
    axes = figure.subplots(1, len(problems), squeeze=False)
    for axis, problem in zip(axes[0], problems, strict=True):
        for method in METHODS:
            own = [r for r in rows if (r["problem"], r["method"]) == (problem, method)]
            times = sorted({r["budget"] for r in own})
            each = [[r["nll"] for r in own if r["budget"] == t] for t in times]
            if times:
                errors = [stdev(v) / len(v) ** 0.5 if len(v) > 1 else 0.0 for v in each]
                width = 2.5 if "ours" in method else 1
                axis.errorbar(times, list(map(mean, each)), errors, fmt="o-", label=method,
                              lw=width)  # fmt: skip
        axis.set(title=problem, xlabel="seconds", ylabel="test NLL")
        axis.legend(fontsize=7)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


Key = tuple[str, str, float, int]


def waiting_for(key: Key) -> subprocess.Popen[str]:
    """The process of a row, which waits for its turn with everything imported."""
    one = json.dumps(dict(zip(KEYS, key, strict=True)))
    return started("lab.rivals", [*sys.argv[1:], "--row", one])


def finished(process: subprocess.Popen[str], key: Key) -> dict[str, Any]:
    """Its row; what goes wrong there is the row."""
    try:
        return answer(process, 1.5 * key[2] + 20)
    except NoAnswerError as error:
        return dict(zip(KEYS, key, strict=True)) | {"error": str(error)}


def main() -> None:
    """Runs what the file does not have yet."""
    parser = options("rivals", __doc__ or "", out="results/rivals.json")
    for name in PROBLEMS:
        parser.add_argument(f"--{name}", type=Path, help="its data; left out without")
    parser.add_argument("--seconds", type=float, nargs="+", default=[60.0])
    parser.add_argument("--seeds", type=at_least(1), default=1)
    parser.add_argument("--first", type=at_least(0), default=0, help="the first seed")
    parser.add_argument("--rows", type=at_least(20), help="of data, at most")
    parser.add_argument("--methods", nargs="+", choices=list(METHODS), default=list(METHODS))
    parser.add_argument("--together", type=at_least(1), default=1, help="rows at a time")
    parser.add_argument("--budget", type=float, default=float("inf"), help="seconds of all rows")
    parser.add_argument("--row", help=argparse.SUPPRESS)
    given = parser.parse_args()
    logging.getLogger("natural_langevin").setLevel(logging.ERROR)
    if given.row:
        one = json.loads(given.row)
        path = getattr(given, one["problem"])
        found = row(one["problem"], path, one["method"], one["budget"], one["seed"], given.device,
                    given.rows, waits=True)  # fmt: skip
        print(json.dumps(found), flush=True)
        return
    began = time.perf_counter()
    settings = {"rows": given.rows, "left_out": LEFT_OUT}
    results = open_results(given.out, settings, [], ValueError)
    done = {tuple(r[k] for k in KEYS) for r in results["rows"] if "error" not in r}
    problems = [p for p in PROBLEMS if getattr(given, p) is not None]
    seeds = range(given.first, given.first + given.seeds)
    keys = [
        (problem, method, seconds, seed)
        for seed, seconds, problem, method in itertools.product(
            seeds, sorted(given.seconds), problems, given.methods
        )
        if (problem, method, seconds, seed) not in done
    ]
    groups = [keys[k : k + given.together] for k in range(0, len(keys), given.together)]
    waiting = [waiting_for(key) for key in groups[0]] if groups else []
    for place, group in enumerate(groups):
        processes = waiting
        if time.perf_counter() - began + max(key[2] for key in group) + 10 > given.budget:
            say(f"left for another time: {groups[place:]}")
            for process in processes:
                dismiss(process)
            break
        with ThreadPoolExecutor(len(group)) as pool:
            running = [pool.submit(finished, *one) for one in zip(processes, group, strict=True)]
            if place + 1 < len(groups):
                time.sleep(max(0.0, group[0][2] - 20))  # nobody imports beside others' runs
                waiting = [waiting_for(key) for key in groups[place + 1]]
            shared = {"device": given.device, "together": len(group),
                      "mps": "CUDA_MPS_PIPE_DIRECTORY" in os.environ}  # fmt: skip
            for one in as_completed(running):  # a file holds what has ended
                found = one.result() | shared
                kept = [r for r in results["rows"] if any(r[k] != found[k] for k in KEYS)]
                results = results | {"rows": [*kept, found], "origin": origin(given.device)}
                write_results(given.out, results)
                print(json.dumps(found), flush=True)
    show(COLUMNS, summary(results["rows"]))
    publish(sys.modules[__name__], results, given.page, given.plot)


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    guarded(main)
