"""The whole benchmark: settings -> sections -> one JSON."""

from __future__ import annotations

import contextlib
import datetime
import json
import logging
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from lab.speed import growth, latency, memory, samples, steps
from lab.speed.contenders import contenders
from lab.speed.measure import Say
from lab.speed.problems import NETWORKS
from lab.speed.settings import SECTIONS, BenchError, Settings
from natural_langevin._internal.atomic import check_writable, write_output
from natural_langevin._internal.checked_json import read_json
from natural_langevin.cli.experiments.origin import origin

log = logging.getLogger("natural_langevin")

FORMAT = 2
PACKAGES = ("jax", "blackjax", "posteriors", "triton")

MEASURES: dict[str, Callable[[Settings, Say], dict[str, Any]]] = {
    "steps": steps.section,
    "memory": memory.section,
    "growth": growth.section,
    "latency": latency.section,
    "samples": samples.section,
}


def run(settings: Settings, *, out: Path | None = None, say: Say = lambda line: None) -> Any:
    """Measures; with ``out``, the JSON is written after every piece, so that none is lost.

    A piece is a section, or one network of the steps. With ``settings.resume`` the file's other
    pieces stay: a long benchmark can be run in parts, all on one machine."""
    settings = settings.resolved()
    _check_only(settings)
    if out is not None:
        _check_writable(out)
    results: dict[str, Any] = {
        "format": FORMAT,
        "kind": "bench",
        "created": _now(),
        **_origin(settings.device),
        "config": asdict(settings),
        "load_before": _load(),
        "pieces": {},
        "sections": {},
        "failed": {},
    }
    if settings.resume and out is not None and out.exists():
        results |= _kept(_read(out), results["machine"])
    with _machine_settings(settings):
        for name, part in _pieces(settings):
            say(f"section {name}")
            began, load = time.monotonic(), _load()
            section = name.partition(" ")[0]
            results["failed"].pop(name, None)
            try:
                _add(results["sections"], section, MEASURES[section](part, say))
            except Exception as error:  # the other pieces are worth having
                log.exception("section %s failed", name)
                results["failed"][name] = f"{type(error).__name__}: {error}"[:500]
            results["pieces"][name] = {
                "created": _now(), "seconds": time.monotonic() - began, "load_before": load,
                "load_after": _load(), "config": asdict(part),
            }  # fmt: skip
            results["left_out"] = _left_out(settings, results["sections"])
            results["seconds"] = sum(piece["seconds"] for piece in results["pieces"].values())
            if out is not None:
                write_output(out, json.dumps(results, indent=1).encode())
    return results


def _pieces(settings: Settings) -> Iterator[tuple[str, Settings]]:
    for section in settings.sections:
        if section != "steps":
            yield section, settings
            continue
        for network in settings.networks:
            yield f"steps {network}", replace(settings, networks=(network,))


def _add(sections: dict[str, Any], name: str, found: dict[str, Any]) -> None:
    """The section, or the network of it, or the samplers from the same starts, that were
    measured."""
    if name == "steps" and name in sections:
        new = {part["network"] for part in found["networks"]}
        kept = [part for part in sections[name]["networks"] if part["network"] not in new]
        networks = sorted(kept + found["networks"], key=lambda p: NETWORKS.index(p["network"]))
        found = {"networks": networks}
    if (
        name == "samples"
        and sections.get(name, {}).get("reference_loss") == found["reference_loss"]
    ):
        new = {row["name"] for row in found["rows"]}
        found["rows"] = [r for r in sections[name]["rows"] if r["name"] not in new] + found["rows"]
    sections[name] = found


def _check_only(settings: Settings) -> None:
    """Refuses ``--only`` where nobody's name holds it, and names those that there are."""
    names = [rival.name for rival in samples.rivals()] if "samples" in settings.sections else []
    if "steps" in settings.sections:
        for network in settings.networks:
            names += [c.label for c in contenders(network, settings.chains or (1,))]
    lost = [w for w in settings.only if not any(w.lower() in name.lower() for name in names)]
    if names and lost:
        known = ", ".join(dict.fromkeys(names))
        raise BenchError(f"--only {lost[0]}: no contender's name holds that. There are {known}")


def _read(path: Path) -> Any:
    """The results that a file holds."""
    try:
        return read_json(path)
    except (OSError, ValueError) as error:
        raise BenchError(
            f"{path} holds no results to resume ({error}): remove it, or choose another --out"
        ) from None


def _kept(old: Any, machine: Any) -> dict[str, Any]:
    """What a file of this machine holds already."""
    mine = isinstance(old, dict) and old.get("kind") == "bench" and old.get("machine") == machine
    if not mine or "pieces" not in old:
        raise BenchError("the file is of another machine or version: choose another --out")
    kept = {key: old.get(key) for key in ("sections", "pieces", "failed")}
    if not all(isinstance(value, dict) for value in kept.values()):
        raise BenchError("the file holds no results to resume: choose another --out")
    return kept


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def _check_writable(out: Path) -> None:
    """Before anything is measured, rather than after."""
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        check_writable(out.parent)
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


def _left_out(settings: Settings, sections: dict[str, Any]) -> list[str]:
    """What a reader might expect to find and will not."""
    found = [f"section {name}" for name in SECTIONS if name not in sections]
    measured = {part["network"] for part in sections.get("steps", {}).get("networks", [])}
    found += [f"network {name}" for name in NETWORKS if name not in measured]
    if settings.chains:
        found.append(f"chains other than {', '.join(map(str, settings.chains))}")
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
