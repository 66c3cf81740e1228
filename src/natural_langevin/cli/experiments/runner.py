"""The runner: stages in order, each result kept on disk as soon as it exists.

A run folder holds ``config.json`` (what is run), ``stages/NAME.json`` (finished work),
``stages/NAME.RANK.checkpoint`` (work under way) and ``results.json``. Resuming skips the
finished stages and continues the one under way; a folder of another configuration is refused.
"""

from __future__ import annotations

import hashlib
import json
import logging
import multiprocessing
import shutil
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from natural_langevin import data
from natural_langevin._internal.atomic import remove_leftovers
from natural_langevin._internal.checked_json import (
    read_json,
    with_checksum,
    without_checksum,
    write_json,
)
from natural_langevin._internal.folder_lock import FolderLock
from natural_langevin._internal.provenance import check_same_run
from natural_langevin.cli.experiments.origin import origin
from natural_langevin.cli.experiments.table1 import baseline_stages, defaults_stage, stages
from natural_langevin.cli.experiments.table1.protocol import (
    BY_NAME,
    METHODS,
    PRESETS,
    Preset,
    fit_to,
)
from natural_langevin.cli.experiments.table1.stages import Bench
from natural_langevin.distributed import launched

log = logging.getLogger("natural_langevin")

BASELINES = ("sgd", "dropout")


class RunError(ValueError):
    """The run cannot start or continue; the message has the reason and the remedy."""


@dataclass(frozen=True)
class Request:
    """The user's request."""

    dataset: str
    preset: str
    out: Path | None = None  # default: a folder under runs/ named by the configuration
    device: str = "cpu"
    seeds: int | None = None
    resume: bool = False
    data_dir: str | None = None
    precision: str = "highest"
    jobs: int = 1
    progress: bool = True


#: Stage -> the stages whose results it needs, in the order of the table.
STAGES: dict[str, tuple[str, ...]] = {
    **{f"{b}-select": () for b in BASELINES},
    **{f"{m.name}-select": () for m in METHODS if m.like is None},
    **{f"{b}-final": (f"{b}-select",) for b in BASELINES},
    f"{defaults_stage.NAME}-final": (),
    **{f"{m.name}-final": (f"{m.like or m.name}-select",) for m in METHODS},
}


def run(request: Request) -> Path:
    """Runs what is missing and returns the run's folder."""
    if launched():
        raise RunError("reproduce starts its own processes: run it without torchrun, with --jobs")
    preset, dataset = _resolve(request)
    config = {"dataset": dataset.name, "precision": request.precision, **asdict(preset)}
    config = json.loads(json.dumps(config))
    if request.out is None:  # a name of its own for every configuration
        digest = hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()[:8]
        request = replace(request, out=Path("runs") / f"{dataset.name}-{preset.name}-{digest}")
    assert request.out is not None
    with _claim(request, config):
        _run_missing(request, preset, dataset, request.out / "stages")
    return request.out


def _run_missing(request: Request, preset: Preset, dataset: data.Dataset, folder: Path) -> None:
    missing = [name for name in STAGES if not (folder / f"{name}.json").exists()]
    done = len(STAGES) - len(missing)
    if done:
        log.info("%d of %d stages were finished before", done, len(STAGES))
    if request.jobs == 1:
        bench = _bench(request, preset, dataset)
        for name in missing:
            run_stage(bench, name)
    elif missing:
        _run_parallel(replace(request, dataset=dataset.name, progress=False), preset, missing)


def _resolve(request: Request) -> tuple[Preset, data.Dataset]:
    if request.preset not in PRESETS:
        raise RunError(f"unknown preset {request.preset!r}: use one of {', '.join(PRESETS)}")
    if request.seeds is not None and request.seeds < 1:
        raise RunError(f"--seeds must be at least 1, got {request.seeds}")
    if request.dataset not in data.NAMES:
        names = ", ".join(data.NAMES)
        raise RunError(f"unknown dataset {request.dataset!r}: use one of {names}")
    dataset = _load(request, PRESETS[request.preset])
    preset = fit_to(PRESETS[request.preset], len(dataset.train_x))
    if request.seeds is not None:
        preset = replace(preset, seeds=request.seeds)
    if request.precision != "highest":
        preset = replace(preset, deviations=(*preset.deviations, "matrix products in TF32"))
    return preset, dataset


def _load(request: Request, preset: Preset) -> data.Dataset:
    """The data, with as much to learn from as the preset takes."""
    found, count = data.load(request.dataset, data_dir=request.data_dir), preset.train_images
    return replace(found, train_x=found.train_x[:count], train_y=found.train_y[:count])


def _bench(request: Request, preset: Preset, dataset: data.Dataset) -> Bench:
    assert request.out is not None
    torch.set_float32_matmul_precision(request.precision)
    return Bench(
        preset,
        dataset,
        torch.device(request.device),
        request.out / "stages",
        progress=request.progress,
    )


def _claim(request: Request, config: dict[str, Any]) -> FolderLock:
    """Makes the run folder, or checks that the one there belongs to this configuration; it is
    locked from then on."""
    assert request.out is not None
    path = request.out / "config.json"
    try:
        (request.out / "stages").mkdir(parents=True, exist_ok=True)
        lock = FolderLock(request.out, "reproducing the table")
        for folder in (request.out, request.out / "stages"):
            remove_leftovers(folder)
        for finished in (request.out / "stages").glob("*.json"):  # killed right after the result
            _drop_checkpoints(finished.parent, finished.stem)
        if path.exists():
            check_same_run(
                request.out, read_record(path), config, what="another run",
                remedy="Choose another --out, or the same settings", error=RunError,
            )  # fmt: skip
            if not request.resume:
                raise RunError(
                    f"{request.out} already holds this run: add --resume to continue it, or "
                    "choose another --out"
                )
        else:
            write_json(path, config)
        if not (request.out / "origin.json").exists():
            write_json(request.out / "origin.json", origin(request.device))
    except OSError as error:
        raise RunError(f"cannot use the folder {request.out}: {error}") from error
    return lock


def run_stage(bench: Bench, name: str) -> None:
    """Runs one stage to its end and writes its result; its checkpoint is then of no more use."""
    method, part = name.rsplit("-", 1)
    if method == defaults_stage.NAME:
        write_json(bench.folder / f"{name}.json", with_checksum(defaults_stage.final(bench)))
        return
    module: Any = baseline_stages if method in BASELINES else stages
    subject = method if method in BASELINES else BY_NAME[method]
    if part == "select":
        result = module.select(bench, subject)
    else:
        (needed,) = STAGES[name]
        ranking = read_record(bench.folder / f"{needed}.json", "ranking")["ranking"]
        result = module.final(bench, subject, ranking)
    write_json(bench.folder / f"{name}.json", with_checksum(result))
    _drop_checkpoints(bench.folder, name)


def _drop_checkpoints(folder: Path, stage: str) -> None:
    """Those of a stage that has its result."""
    for checkpoint in folder.glob(f"{stage}.*.checkpoint"):
        shutil.rmtree(checkpoint)


def _longest_first(names: list[str]) -> list[str]:
    """The pooled method has by far the longest final stage: its stages go first."""
    return sorted(names, key=lambda n: not BY_NAME.get(n.rsplit("-", 1)[0], METHODS[0]).pools)


def _run_parallel(request: Request, preset: Preset, missing: list[str]) -> None:
    """Several worker processes on one device: one compiles while another computes."""
    context = multiprocessing.get_context("spawn")
    waiting = _longest_first(missing)
    running: dict[Future[None], str] = {}
    with ProcessPoolExecutor(request.jobs, mp_context=context) as pool:
        while waiting or running:
            open_stages = {*waiting, *running.values()}
            ready = [n for n in waiting if not open_stages.intersection(STAGES[n])]
            for name in ready[: request.jobs - len(running)]:
                waiting.remove(name)
                running[pool.submit(_worker, request, preset, name)] = name
            finished, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in finished:
                log.info("finished %s", running.pop(future))
                future.result()


def _worker(request: Request, preset: Preset, name: str) -> None:
    dataset = _load(request, preset)
    run_stage(_bench(request, preset, dataset), name)


def spent(folder: Path, seconds: float) -> float:
    """Adds up the time of all calls that ended well; one that found the run finished adds none."""
    path = folder / "seconds.json"
    before: dict[str, Any] = {"seconds": 0.0, "finished": False}
    if path.exists():
        before = read_record(path, *before)
    if not before["finished"]:
        before = {"seconds": before["seconds"] + seconds, "finished": True}
        write_json(path, before)
    return float(before["seconds"])


def read_record(path: Path, *needed: str) -> dict[str, Any]:
    """A file of a run's folder, verified where it has a checksum; RunError where it is damaged."""
    try:
        value = read_json(path)
        if not isinstance(value, dict) or not set(needed) <= value.keys():
            raise ValueError("something is missing in it")
        return without_checksum(value) if "checksum" in value else value
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise RunError(
            f"{path} is damaged ({reason}): remove it and run the same with --resume, which makes "
            "it again"
        ) from None
