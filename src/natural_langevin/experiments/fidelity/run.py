"""All contenders one after the other; what is done is in the file, and is not done again."""

from __future__ import annotations

import dataclasses
import json
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from natural_langevin._internal.atomic import staged
from natural_langevin.experiments.fidelity.chain import Settings, follow, now, pace
from natural_langevin.experiments.fidelity.contenders import CONTENDERS, Contender
from natural_langevin.experiments.fidelity.problem import Problem, scores
from natural_langevin.experiments.fidelity.shifted import shifted
from natural_langevin.experiments.origin import origin
from natural_langevin.types import Params

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
    results: dict[str, Any] = {"settings": described, "rows": {}}
    if out.exists():
        results = json.loads(out.read_text(encoding="utf-8"))
        if results["settings"] != described:
            raise FidelityError(f"{out} holds results of other settings: give another --out")
    results |= origin(settings.device)
    results["reference"] = scores(problem.reference, problem)
    problem = problem.to(settings.device)
    torch.backends.cudnn.benchmark = settings.device.startswith("cuda")  # shapes never change

    def save() -> None:
        with staged(out) as handle:
            handle.write(json.dumps(results, indent=1, allow_nan=False).encode())

    for name in names:
        if not results["rows"].get(name, {}).get("done"):
            row: dict[str, Any] = {}
            results["rows"][name] = row
            _contend(CONTENDERS[name], problem, settings, row, save, say)
            save()
    return results


def _contend(
    contender: Contender,
    problem: Problem,
    settings: Settings,
    row: dict[str, Any],
    save: Callable[[], None],
    say: Callable[[str], None],
) -> None:
    """Pace, pilot and run of one contender, into ``row``."""
    began = now(settings.device)
    row |= {"title": contender.title, "done": False, "looks": []}
    step_seconds = pace(contender, problem, settings)
    row["step_milliseconds"] = 1000 * step_seconds
    row["pilot"] = _pilot(contender, problem, settings, step_seconds, say)
    chosen = min(row["pilot"], key=lambda tried: tried["nll"])["step_size"]
    row["step_size"] = contender.step_size(
        chosen, settings.seconds / settings.chains / step_seconds
    )
    row["setup_seconds"] = now(settings.device) - began
    draws: list[Params] = []
    for look, mean in follow(
        contender, problem, settings, row["step_size"], seconds=settings.seconds,
        step_seconds=step_seconds, looks=settings.looks, say=say,
        draws=draws if settings.shift else None,
    ):  # fmt: skip
        row["looks"].append(look | scores(mean, problem))
        save()
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
        looks = list(
            follow(
                short, held_out, one, contender.step_size(eta, settings.pilot / step_seconds),
                seconds=settings.pilot, step_seconds=step_seconds, looks=10, say=say,
            )
        )  # fmt: skip
        found = scores(looks[-1][1], held_out) if looks else {"nll": math.inf}
        nll = found["nll"] if math.isfinite(found["nll"]) else 1e9
        tried.append({"step_size": eta, "nll": nll})
        say(
            f"{contender.title}: step size {eta:g}, held-out NLL {nll:.4f} "
            f"({time.perf_counter() - began:.1f} s)"
        )
    return tried
