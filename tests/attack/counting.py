"""A plugin of pytest that counts cases: every example of a property test, every kill of one run.

A test is one case, unless it recorded a property ``cases`` of its own."""

from __future__ import annotations

import functools
import json
import os
from collections import defaultdict
from typing import Any

import pytest


def pytest_collection_modifyitems(items: list[Any]) -> None:
    """Counts how often hypothesis calls a test."""
    for item in items:
        handle = getattr(getattr(item, "obj", None), "hypothesis", None)
        if handle is not None:
            handle.inner_test = _counted(handle.inner_test, item)


def _counted(test: Any, item: Any) -> Any:
    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> Any:
        item.examples = getattr(item, "examples", 0) + 1
        return test(*args, **kwargs)

    return run


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: Any, call: Any) -> Any:
    """Leaves the count with the report."""
    report = yield
    if report.when == "call" and getattr(item, "examples", 0):
        report.user_properties.append(("cases", item.examples))
    return report


class Counts:
    """Cases tried and failed, and seconds, by file of tests."""

    def __init__(self) -> None:
        self.found: dict[str, dict[str, Any]] = defaultdict(
            lambda: {"tried": 0, "failed": 0, "skipped": 0, "seconds": 0.0, "failures": []}
        )

    def add(self, report: Any) -> None:
        """Of a test's setup, call and teardown, the call counts; a failure counts wherever."""
        here = self.found[report.nodeid.split("::")[0]]
        here["seconds"] += report.duration
        cases = int(dict(report.user_properties).get("cases", 1))
        if report.skipped:
            here["skipped"] += 1
        elif report.failed:
            here["tried"] += cases if report.when == "call" else 1
            here["failed"] += 1
            here["failures"].append(report.nodeid)
        elif report.when == "call":
            here["tried"] += cases


_counts = Counts()


def pytest_runtest_logreport(report: Any) -> None:
    """Of every process, in the one that began."""
    _counts.add(report)


def pytest_sessionfinish() -> None:
    """Written where the command that began reads it."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        with open(os.environ["ATTACK_COUNTS"], "w") as handle:
            json.dump(_counts.found, handle)
