"""Runs the kernel of whole steps in Triton's interpreter, on the CPU, against the reference."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

#: (widths, activation, bias), likelihood, metric, dynamics: a few, and with "all" every one.
FIRST = (
    ("2-5-3", "categorical", "quasi-diagonal", "overdamped"),
    ("4-17-6-1", "rmse", "every", "baoab"),
)
OTHERS = (
    ("3-1", "gaussian", "quasi-diagonal", "overdamped"),
    ("3-4", "categorical", "diagonal", "euler"),
    ("5-6-2", "bernoulli", "rmsprop", "euler"),
    ("5-6-1", "bernoulli", "euclidean", "overdamped"),
    ("13-20-1", "gaussian", "paper", "overdamped"),
    ("4-17-6-3", "gaussian", "quasi-diagonal", "euler"),
    ("4-6-6-3", "categorical", "euclidean", "baoab"),
)


def main() -> None:
    sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]

    from triton_interpreter import start

    if not start():  # before a kernel is imported
        return

    from test_whole_steps import ACTIVATIONS, check_run, check_stop, interpreted

    with interpreted():
        for case in FIRST + (OTHERS if "all" in sys.argv else ()):
            check_run(*case)
            print(f"{' · '.join(case)}: agrees", flush=True)
        if "all" in sys.argv:
            options: dict[str, Any]
            for name in ACTIVATIONS:
                check_run("3-5-2", "gaussian", "euclidean", "overdamped", activation=name)
                print(f"{name}: agrees", flush=True)
            for options in ({"bias": False}, {"mean_rate": None}, {"rows": True}):
                check_run("3-5-2", "gaussian", "quasi-diagonal", "euler", **options)
                print(f"{options}: agrees", flush=True)
        check_stop()
        print("a chain that diverges: agrees")


if __name__ == "__main__":  # not while tests are collected: every file is imported for its doctests
    main()
