"""Stages of the baselines: SGD, Dropout, and what is built on them (deep ensembles, MC-dropout)."""

from __future__ import annotations

from itertools import product

import torch
from torch import Tensor

from natural_langevin import models, random, schedules
from natural_langevin._internal.chains import Params
from natural_langevin.cli.experiments.table1.scores import curve, diagram, row
from natural_langevin.cli.experiments.table1.stages import (
    FINAL_SEED,
    SELECT_SEED,
    Bench,
    Result,
    cell_scores,
    first_to_survive,
    in_rows,
    ranked,
)
from natural_langevin.cli.experiments.table1.training import Outcome, train
from natural_langevin.data.streams import InMemory
from natural_langevin.dynamics import Descent, RatesTable
from natural_langevin.dynamics.descent import forward, hidden_units
from natural_langevin.execution.engine import Engine, Mode


def mc_dropout(params: Params, x: Tensor, rate: Tensor, origin: Tensor, samples: int) -> Tensor:
    """Probabilities averaged over dropout masks drawn at test time: (network, n, classes)."""
    total = torch.zeros(())
    for sample in range(samples):
        parts = []
        for index, part in enumerate(x.split(2000)):
            key = random.stream(origin, sample * 10_000 + index)
            masks = random.uniform(key, hidden_units(params) * len(part))
            parts.append(forward(params, part, rate, masks).softmax(-1))
        total = torch.cat(parts, dim=1) / samples + total.to(x.device)
    return total


#: The paper's Euclidean step sizes, best guess first, like the samplers' grids.
STEP_SIZES = (0.1, 0.01, 1.0, 0.001)
LABELS = {"sgd": "SGD", "dropout": "Dropout"}


def select(bench: Bench, kind: str) -> Result:
    """Validation scores over step sizes, and over dropout rates for Dropout."""
    preset = bench.preset
    step_sizes = sorted(STEP_SIZES[: preset.step_sizes])
    rates = list(preset.dropout_rates) if kind == "dropout" else [0.0]
    pairs = list(product(step_sizes, rates))
    outcome, _ = _train(
        bench, kind, "select", bench.fit,
        step_size=torch.tensor([eta for eta, _ in pairs]),
        rate=torch.tensor([rate for _, rate in pairs]),
        steps=preset.select_steps, seed=SELECT_SEED,
    )  # fmt: skip
    x, y = bench.held_out
    p = _predict(outcome.state.params, x)
    accuracy, nll = cell_scores(p, y)
    ranking = [{"step_size": pairs[i][0], "dropout_rate": pairs[i][1]} for i in ranked(nll)]
    chosen = ranking[0]
    grid = {
        "method": kind,
        "label": LABELS[kind],
        "step_sizes": step_sizes,
        "prior_variances": rates,
        "columns": "dropout rate",
        "accuracy": in_rows(accuracy, len(rates)),
        "nll": in_rows(nll, len(rates)),
        "chosen": chosen,
    }
    return {"ranking": ranking, "grids": [grid], "seconds": outcome.seconds}


def final(bench: Bench, kind: str, ranking: list[dict[str, float]]) -> Result:
    """The baseline's rows. SGD trains ``pooled`` networks per seed: the deep ensemble."""
    return first_to_survive(
        LABELS[kind], ranking, lambda rank, chosen: _final(bench, kind, chosen, rank)
    )


def _final(bench: Bench, kind: str, chosen: dict[str, float], rank: int) -> Result:
    preset, data = bench.preset, bench.data
    group = preset.pooled if kind == "sgd" else 1
    networks = preset.seeds * group
    rate = torch.full((networks,), chosen["dropout_rate"])
    outcome, origin = _train(
        bench, kind, "final", (data.train_x, data.train_y),
        step_size=torch.full((networks,), chosen["step_size"]), rate=rate,
        steps=preset.steps, seed=FINAL_SEED, rank=rank, stop_if_diverged=True,
    )  # fmt: skip
    scored, params = bench.scored, outcome.state.params
    settings = {"step_size": chosen["step_size"]}
    if kind == "dropout":
        settings["dropout_rate"] = chosen["dropout_rate"]
    predictions = {name: _predict(params, x) for name, (x, _) in scored.items()}
    seconds = outcome.seconds / networks
    point = row(
        kind, "point", LABELS[kind], lambda name: predictions[name][::group], scored,
        settings=settings, seconds=[seconds], paper=True,
    )  # fmt: skip
    if kind == "sgd":
        more = row(
            "deep-ensemble", "pooled", f"Deep ensemble of {group} SGD networks",
            lambda name: predictions[name].unflatten(0, (-1, group)).mean(1), scored,
            settings=settings, seconds=[seconds * group],
        )  # fmt: skip
    else:

        def masked(name: str) -> Tensor:
            x, _ = scored[name]
            assert origin is not None
            return mc_dropout(params, x, rate.to(x.device), origin, preset.mc_dropout)

        more = row(
            "mc-dropout", "ensemble", f"MC-dropout, {preset.mc_dropout} masks", masked, scored,
            settings=settings, seconds=[seconds],
        )  # fmt: skip
    first, y = predictions["test"][0], scored["test"][1]
    return {
        "rows": [point, more],
        "seconds_per_update": seconds / preset.steps,
        "curve": curve(kind, LABELS[kind], outcome.steps, outcome.losses[:, ::group]),
        "reliability": diagram(kind, "point", LABELS[kind], first, y),
    }


def _predict(params: dict[str, Tensor], x: Tensor) -> Tensor:
    none = x.new_zeros(len(next(iter(params.values()))))
    with torch.no_grad():
        return torch.cat(
            [forward(params, part, none, None).softmax(-1) for part in x.split(5000)], 1
        )


#: Updates on a GPU from which on compiling repays its minute.
COMPILE_FROM = 10_000


def mode_of(bench: Bench) -> Mode:
    """How the baselines are run, whose layers no kernel on a GPU updates."""
    long = bench.device.type == "cuda" and bench.preset.steps >= COMPILE_FROM
    return "compiled" if long else "auto"


def _train(
    bench: Bench,
    kind: str,
    stage: str,
    data: tuple[Tensor, Tensor],
    *,
    step_size: Tensor,
    rate: Tensor,
    steps: int,
    seed: int,
    rank: int = 0,
    stop_if_diverged: bool = False,
) -> tuple[Outcome, Tensor | None]:
    preset, device, count = bench.preset, bench.device, len(step_size)
    chain = torch.arange(count, device=device)
    stream = InMemory(*data, batch_size=preset.batch_size, chain=chain, seed=seed, device=device)
    schedule = schedules.halving(step_size, every=preset.halve_every)
    rates = RatesTable.build(schedule, stop=steps, chains=count, device=device)
    origin = random.origin(seed, random.NOISE, chain) if kind == "dropout" else None
    template = {k: p.detach().to(device) for k, p in bench.network().named_parameters()}
    start = models.fan_in_init(template, chain=chain, seed=seed)
    descent = Descent.of(start, rate.to(device), origin)
    state = descent.init(start)
    engine = Engine(descent, stream, rates, len(stream.x), mode=mode_of(bench))
    outcome = train(
        engine, state, steps=steps, burn_in=steps, thin=1, stop_if_diverged=stop_if_diverged,
        **bench.training(f"{kind}-{stage}", rank),
    )  # fmt: skip
    mask_origin = None if origin is None else random.origin(seed, random.LABELS, chain)
    return outcome, mask_origin
