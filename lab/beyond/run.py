"""Runs the missing parts in order; the file of results is written after each."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from lab.beyond.parts import PARTS
from lab.beyond.protocol import Protocol
from lab.beyond.sampling import Bench
from lab.pages import markdown
from lab.results import finite, write_results
from natural_langevin.cli.experiments.origin import origin
from natural_langevin.data import Dataset
from natural_langevin.run.loop import DivergenceError

FORMAT = 1


class BeyondError(ValueError):
    """The run cannot start or go on; the message says why and what to do."""


def run(
    data: Dataset,
    out: Path,
    *,
    work: Path | None = None,
    protocol: Protocol | None = None,
    parts: Mapping[str, float] | None = None,
    device: str = "cpu",
    compile: bool | str = "auto",
    precision: str = "high",
    searches: Path | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """The results, which are also in ``out``; parts that are complete there are not run again.

    ``parts``: which, and for how many seconds each (None: all, for as long as they take). One that
    ran out of time goes on where it was, from the folder ``work`` (by default beside ``out``), when
    it is run again; what comes after it works with what it has found so far. ``searches``: the
    results of another run on the same data, with whose first searches a new file begins."""
    protocol = (protocol or Protocol()).fit_to(len(data.train_x))
    wanted = dict.fromkeys(PARTS, float("inf")) if parts is None else dict(parts)
    if unknown := set(wanted) - set(PARTS):
        raise BeyondError(f"unknown parts {sorted(unknown)}: use some of {', '.join(PARTS)}")
    config = json.loads(
        json.dumps({"dataset": data.name, "precision": precision, **protocol.as_dict()})
    )
    results = _opened(out, config, device)
    if searches is not None and not results["parts"]:
        results["parts"] = _first_searches(searches, config)
        results["searches"] = searches.name
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        for name in PARTS:
            known = results["parts"].get(name)
            if name not in wanted or (known is not None and known["complete"]):
                continue
            started = time.monotonic()
            for needed in PARTS[name].needs:
                if needed not in results["parts"]:
                    raise BeyondError(f"the part {name} needs {needed}: run that first")
            bench = Bench(
                protocol, data, torch.device(device), work or out.with_suffix(".parts"), compile,
                started + wanted[name], _prefixed(say, name),
            )  # fmt: skip
            found = _found(name, bench, results["parts"])
            if found is None:
                break
            found["started"] = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
            found["machine"] = origin(device)
            results["parts"][name] = finite(found)
            results["rows"] = [
                row for part in results["parts"].values() for row in part.get("rows", [])
            ]
            write_results(out, results)
            say(f"{name}: {time.monotonic() - started:.1f} s in all, written to {out}")
    finally:
        torch.set_float32_matmul_precision(before)
    return results


def _found(name: str, bench: Bench, done: dict[str, Any]) -> dict[str, Any] | None:
    """What a part comes to; None where its time was over before it had anything."""
    try:
        return PARTS[name].run(bench, done)
    except TimeoutError as error:
        bench.say(str(error))
        return None
    except DivergenceError as error:  # every chain of the part: the others go on
        bench.say(str(error))
        return {"complete": True, "rows": [], "diverged": [str(error)]}


def _prefixed(say: Callable[[str], None], name: str) -> Callable[[str], None]:
    return lambda line: say(f"{name}: {line}")


def _opened(out: Path, config: dict[str, Any], device: str) -> dict[str, Any]:
    """What is in the file, or an empty frame; a file of another configuration is refused."""
    if not out.exists():
        out.parent.mkdir(parents=True, exist_ok=True)
        return {"format": FORMAT, "config": config, **origin(device), "parts": {}, "rows": []}
    try:
        found: dict[str, Any] = json.loads(out.read_text())
    except (OSError, ValueError) as error:
        raise BeyondError(f"cannot read {out}: {error}") from error
    if found.get("config") != config:
        raise BeyondError(f"{out} holds another run: choose another file, or the same settings")
    return found


def _first_searches(file: Path, config: dict[str, Any]) -> dict[str, Any]:
    """The first searches of another run, whose settings were those of this one."""
    try:
        found = json.loads(file.read_text())
        same = ("dataset", "hidden", "batch_size", "validation", "friction", "select_steps")
        different = [k for k in same if found["config"][k] != config[k]]
        parts = {k: found["parts"][k] for k in ("select", "refine")}
        parts |= {k: found["parts"][k] for k in ("local-select",) if k in found["parts"]}
    except (OSError, ValueError, KeyError) as error:
        raise BeyondError(f"{file} has no searches to begin with: {error!r}") from error
    if different:
        raise BeyondError(f"the searches in {file} had other settings: {', '.join(different)}")
    return parts


def page_table(results: dict[str, Any]) -> str:
    """The rows in Markdown; spread: the standard deviation over seeds or chains. Resolved: the NLL
    with 1e-4 of the uniform in every prediction, as searches score."""
    return markdown(list(COLUMNS), _cells(results))


COLUMNS = ("test NLL", "resolved", "accuracy %", "virial T", "updates")


def _cells(results: dict[str, Any]) -> list[tuple[str, ...]]:
    def shown(of: dict[str, Any], digits: int) -> str:
        spread = f" ± {of['std']:.{digits}f}" if len(of["values"]) > 1 else ""
        return f"{of['mean']:.{digits}f}{spread}"

    return [
        (
            row["label"], shown(row["nll"], 4), shown(row["resolved"], 4),
            shown(row["accuracy"], 2),
            "" if row.get("virial") is None else f"{row['virial']:.2f}",
            f"{row['updates']:,}",
        )
        for row in results["rows"]
    ]  # fmt: skip
