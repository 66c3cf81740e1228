"""All contenders one after the other; what is done is in the file, and is not done again."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import safe_open
from safetensors.torch import save as serialise

from lab.fidelity import chain, dropout
from lab.fidelity.chain import Entry, Pool, Settings, now
from lab.fidelity.contenders import CONTENDERS, Contender
from lab.fidelity.problem import Problem, scores
from lab.fidelity.shifted import shifted
from lab.results import open_results, write_results
from natural_langevin._internal.atomic import write
from natural_langevin._internal.chains import Params
from natural_langevin.cli.experiments.origin import origin

#: From Izmailov et al. 2021 and the competition: agreement with HMC, total variation.
PUBLISHED: dict[str, tuple[float, float]] = {
    "SGLD, 10,000 epochs, several chains": (0.915, 0.110),
    "SGHMC with cyclical steps, likewise": (0.927, 0.099),
    "deep ensemble of 50": (0.915, 0.115),
    "HMC chains among themselves": (0.94, 0.074),
}


class FidelityError(ValueError):
    """Results of other settings, or a contender that there is not."""


def run(
    problem: Problem,
    out: Path,
    *,
    settings: Settings,
    names: Sequence[str] = tuple(CONTENDERS),
    say: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """The content of ``out``, which is written after every look."""
    for name in names:
        if name not in CONTENDERS:
            raise FidelityError(
                f"there is no contender {name!r}: choose from {', '.join(CONTENDERS)}"
            )
    if settings.batch_size > round(0.9 * len(problem.y)):
        raise FidelityError(
            f"a minibatch of {settings.batch_size} is more than the pilot's share of "
            f"{len(problem.y)} images: use a smaller --batch-size"
        )
    described = dataclasses.asdict(settings) | {"data": problem.source, "images": len(problem.y)}
    if problem.foreign:
        described["foreign"] = list(problem.foreign)
    results = open_results(out, described, {}, FidelityError) | origin(settings.device)
    results["reference"] = scores(problem.reference, problem)
    problem = problem.to(settings.device)
    torch.backends.cudnn.benchmark = settings.device.startswith("cuda")  # shapes never change

    for name in names:
        row = results["rows"].setdefault(name, {})
        if not row.get("done"):
            pooled = out.with_name(f"{out.stem}-{name}.safetensors")
            save = functools.partial(write_results, out, results)
            _contend(CONTENDERS[name], problem, settings, row, pooled, save, say)
            save()
    return results


def _contend(
    contender: Contender,
    problem: Problem,
    settings: Settings,
    row: dict[str, Any],
    pooled: Path,
    save: Callable[[], None],
    say: Callable[[str], None],
) -> None:
    """Pace, pilot and run of one contender, into ``row``.

    After every chain the probabilities so far are in ``pooled``, from where a run that was broken
    off goes on; not where draws themselves are needed, for the shifts."""
    begun = "step_size" in row and not settings.shift
    before = _pool(pooled, problem) if begun else None
    if before is None:
        pooled.unlink(missing_ok=True)  # of other settings, perhaps
        row.clear()
        _prepare(contender, problem, settings, row, say)
    row["looks"] = [look for look in row["looks"] if before and look["chain"] <= before.chains]
    draws: list[Params] = []
    chains = before.chains if before else 0
    entry = Entry(
        contender, problem, settings, row["step_size"], settings.seconds,
        row["step_milliseconds"] / 1000, settings.looks,
    )  # fmt: skip
    kept = draws if settings.shift else None
    for look, pool in _way(contender).follow(entry, say, before, kept):
        row["looks"].append(look | scores(pool.mean, problem))
        save()
        if pool.chains > chains:
            chains = pool.chains
            _keep(pool, pooled)
    if draws:
        row["shift"] = shifted(contender, problem, settings, draws)
        if contender.members > 1:
            row["shift_of_one"] = shifted(contender, problem, settings, draws[:1])
    row["done"] = True
    if row["looks"]:
        last = row["looks"][-1]
        say(
            f"{contender.title}: step size {row['step_size']:g}, {last['seconds']:.1f} s, "
            f"{last['epochs']:.1f} epochs, {last['draws']} draws: agreement "
            f"{last['agreement']:.4f}, total variation {last['total_variation']:.4f}, accuracy "
            f"{last['accuracy']:.4f}, NLL {last['nll']:.4f}, ECE {last['ece']:.4f}"
        )


class Way(Protocol):
    """How a contender comes to its predictions: the modules ``chain`` and ``dropout``."""

    def pace(self, contender: Contender, problem: Problem, settings: Settings) -> float:
        """Seconds of a step, once everything is warm."""

    def follow(
        self,
        entry: Entry,
        say: Callable[[str], None],
        pool: Pool | None = None,
        draws: list[Params] | None = None,
    ) -> Iterator[tuple[dict[str, float], Pool]]:
        """After every look: what was spent, and what the networks have come to."""


def _way(contender: Contender) -> Way:
    """Whose ``pace`` and ``follow`` a contender takes."""
    return dropout if contender.dropout else chain


def _prepare(
    contender: Contender,
    problem: Problem,
    settings: Settings,
    row: dict[str, Any],
    say: Callable[[str], None],
) -> None:
    """Pace and pilot of a contender: what all its chains share."""
    began = now(settings.device)
    step_seconds = _way(contender).pace(contender, problem, settings)
    row |= {"title": contender.title, "done": False, "looks": []}
    row["step_milliseconds"] = 1000 * step_seconds
    row["pilot"] = _pilot(contender, problem, settings, step_seconds, say)
    chosen = min(row["pilot"], key=lambda tried: tried["nll"])["step_size"]
    row["step_size"] = contender.step_size(
        chosen, settings.seconds / settings.chains / step_seconds
    )
    row["setup_seconds"] = now(settings.device) - began


def _keep(pool: Pool, path: Path) -> None:
    """The chains so far: the sum of their probabilities, and how many, how long."""
    described = {key: repr(value) for key, value in vars(pool).items() if key != "total"}
    write(path, serialise({"total": pool.total.cpu()}, described))


def _pool(path: Path, problem: Problem) -> Pool | None:
    """What ``_keep`` wrote, where it did."""
    if not path.exists():
        return None
    with safe_open(path, "pt") as file:
        described = {key: json.loads(value) for key, value in file.metadata().items()}
        return Pool(file.get_tensor("total").to(problem.reference.device), **described)


def _pilot(
    contender: Contender,
    problem: Problem,
    settings: Settings,
    step_seconds: float,
    say: Callable[[str], None],
) -> list[dict[str, float]]:
    """Held-out NLL of every candidate after ``settings.pilot`` seconds, on training images alone.

    With one candidate, or no time for it, the middle one is taken."""
    candidates = contender.step_sizes
    if settings.pilot <= 0 or len(candidates) == 1:
        return [{"step_size": candidates[len(candidates) // 2], "nll": 0.0}]
    short = dataclasses.replace(contender, members=1, cycles=1)
    one = dataclasses.replace(settings, chains=1)
    tried = []
    for eta in candidates:
        began, held_out = time.perf_counter(), problem.pilot()
        size = contender.step_size(eta, settings.pilot / step_seconds)
        entry = Entry(short, held_out, one, size, settings.pilot, step_seconds, 10)
        looks = list(_way(short).follow(entry, say))
        found = scores(looks[-1][1].mean, held_out) if looks else {"nll": math.inf}
        nll = found["nll"] if math.isfinite(found["nll"]) else 1e9
        tried.append({"step_size": eta, "nll": nll})
        say(
            f"{contender.title}: step size {eta:g}, held-out NLL {nll:.4f} "
            f"({time.perf_counter() - began:.1f} s)"
        )
    return tried
