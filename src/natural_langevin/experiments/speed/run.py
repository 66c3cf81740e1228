"""The whole benchmark: settings -> sections -> one JSON."""

from __future__ import annotations

import contextlib
import datetime
import json
import logging
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from natural_langevin._internal.atomic import output
from natural_langevin.experiments.origin import origin
from natural_langevin.experiments.speed import growth, latency, memory, steps
from natural_langevin.experiments.speed.measure import Say
from natural_langevin.experiments.speed.problems import NETWORKS
from natural_langevin.experiments.speed.settings import CHAINS, SECTIONS, BenchError, Settings

log = logging.getLogger("natural_langevin")

FORMAT = 1
PACKAGES = ("jax", "blackjax", "posteriors", "triton")

MEASURES: dict[str, Callable[[Settings, Say], dict[str, Any]]] = {
    "steps": steps.section,
    "memory": memory.section,
    "growth": growth.section,
    "latency": latency.section,
}


def run(settings: Settings, *, out: Path | None = None, say: Say = lambda line: None) -> Any:
    """Measures; with ``out``, the JSON is written after every section, so that none is lost."""
    settings = settings.resolved()
    if out is not None:
        _check_writable(out)
    started = time.monotonic()
    results: dict[str, Any] = {
        "format": FORMAT,
        "kind": "bench",
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        **_origin(settings.device),
        "config": asdict(settings),
        "load_before": _load(),
        "left_out": _left_out(settings),
        "sections": {},
        "failed": {},
    }
    with _machine_settings(settings):
        for name in settings.sections:
            say(f"section {name}")
            try:
                results["sections"][name] = MEASURES[name](settings, say)
            except Exception as error:  # the other sections are worth having
                log.exception("section %s failed", name)
                results["failed"][name] = f"{type(error).__name__}: {error}"[:500]
            results["seconds"] = time.monotonic() - started
            results["load_after"] = _load()
            if out is not None:
                with output(out) as handle:
                    handle.write(json.dumps(results, indent=1).encode())
    return results


def _check_writable(out: Path) -> None:
    """Before anything is measured, rather than after."""
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=out.parent):
            pass
    except OSError as error:
        raise BenchError(f"cannot write {out}: {error.strerror or error}") from None


@contextlib.contextmanager
def _machine_settings(settings: Settings) -> Iterator[None]:
    """All cores, one precision for everybody, and room for many compiled steps at a time."""
    threads, precision = torch.get_num_threads(), torch.get_float32_matmul_precision()
    torch.set_num_threads(settings.threads)
    torch.set_float32_matmul_precision(settings.precision)
    import torch._dynamo as dynamo

    try:
        # Dynamo counts compiled versions per function; a benchmark legitimately has many.
        with dynamo.config.patch(recompile_limit=1000, accumulated_recompile_limit=1000):
            yield
    finally:
        torch.set_num_threads(threads)
        torch.set_float32_matmul_precision(precision)


def _origin(device: str) -> dict[str, Any]:
    found = origin(device)
    for package in PACKAGES:
        try:
            found["versions"][package] = version(package)
        except PackageNotFoundError:
            found["versions"][package] = None
    if device.startswith("cuda"):
        found["versions"]["cuda"] = torch.version.cuda
    return found


def _left_out(settings: Settings) -> list[str]:
    """What a reader might expect to find and will not."""
    found = [f"section {name}" for name in SECTIONS if name not in settings.sections]
    found += [f"network {name}" for name in NETWORKS if name not in settings.networks]
    kind = torch.device(settings.device).type
    found += [f"{n} chains" for n in CHAINS[kind] if n not in settings.chains]
    if not settings.compile:
        found.append("everything compiled with torch.compile")
    if settings.only:
        found.append(f"contenders other than {', '.join(settings.only)}")
    return found


def _load() -> float | None:
    """Other people's work on this machine: 1-minute load average."""
    try:
        return os.getloadavg()[0]
    except OSError:
        return None
