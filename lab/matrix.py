"""The matrix: every dynamics and metric, run every way there is, against the eager float64 step.

    python -m lab.matrix --device cuda --out check.json

A line per case, and JSON. A few steps of a small network, the first of them (which applies its own
batch's metric), later ones that update it and ones after burn-in that do not. Noise and minibatches
are functions of their address, so all ways must end at the same numbers up to rounding. The ways:

- eager: operations one by one, in the precision of a run, float32
- graph: the same recorded as a CUDA graph (on CUDA)
- kernels: linear layers updated by our own kernels; on CUDA recorded as well
- native: whole steps in C (on the CPU)
- whole: whole steps in Triton (on CUDA)
- traced: under ``torch.compile`` up to the compiler proper
- compiled: compiled by inductor

What runs have beside steps is there too: stages of a cyclical schedule, control variates, swaps
between temperatures, eigenvectors found anew; a row for the way down to a start; and the
optimizer's steps (``optimizer_check``).
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from lab import optimizer_check
from natural_langevin import Langevin, likelihoods, preconditioners, random, schedules
from natural_langevin.cli.experiments.origin import origin
from natural_langevin.data.streams import InMemory
from natural_langevin.dynamics import (
    Adjusted,
    Descent,
    Integrator,
    Microcanonical,
    NoseHoover,
    Overdamped,
    RatesTable,
    State,
    Underdamped,
)
from natural_langevin.execution import compiled
from natural_langevin.execution import engine as engines
from natural_langevin.execution.engine import Engine
from natural_langevin.execution.full_data import mean_loss
from natural_langevin.execution.kernels.native.planner import plan_native
from natural_langevin.execution.kernels.whole_steps import planner as whole_steps_planner
from natural_langevin.models import fan_in_init
from natural_langevin.recipe.settings import Settings
from natural_langevin.run import descent
from natural_langevin.run.exchange import ReplicaExchange
from natural_langevin.run.problem import starts

Way = Literal["eager", "graph", "kernels", "native", "whole", "traced", "compiled"]

INTEGRATORS: dict[str, Integrator] = {
    "overdamped": Overdamped(),
    "underdamped, euler": Underdamped(0.3),
    "underdamped, baoab": Underdamped(0.3, "baoab"),
    "underdamped, ubu": Underdamped(0.3, "ubu"),
    "nose-hoover": NoseHoover(0.3),
    "microcanonical": Microcanonical(0.3),
    "adjusted": Adjusted(),
    "adjusted, 3 steps": Adjusted(3),
    "overdamped, less heat": Overdamped(correct_heat=True),
    "underdamped, less heat": Underdamped(0.3, correct_heat=True),
}
#: Metrics with options that change how steps are run, beside those of the registry.
METRICS: dict[str, Callable[[], preconditioners.Preconditioner]] = {
    **preconditioners.REGISTRY,
    "kronecker, refreshed": lambda: preconditioners.KroneckerFisher(refresh=2),
    "eigen-kronecker, refreshed": lambda: preconditioners.EigenKroneckerFisher(refresh=2),
}
#: Who takes whole steps, by way.
PLANNERS: dict[str, engines.Planner] = {
    "native": plan_native,
    "whole": whole_steps_planner.plan_whole_steps,
}
#: Runs with something beside plain steps: their dynamics, and what ``Langevin`` is told.
FEATURES: dict[str, tuple[str, dict[str, Any]]] = {
    "cyclical stages": (
        "overdamped", {"step_size": schedules.cyclical(5e-3, 4, exploration=0.5)}
    ),
    "control variates": ("overdamped", {"control_variates": 4}),
    "exchange": ("underdamped, baoab", {"temperature": torch.tensor([1.0, 4.0, 16.0])}),
    "convolutions": ("underdamped, euler", {}),
    "convolutions, baoab": ("underdamped, baoab", {}),
}  # fmt: skip
#: Steps between two swaps.
EXCHANGE = 3
#: These need second moments of gradients, which two metrics do not hold.
HEAT_METRICS = [m for m in preconditioners.REGISTRY if m not in ("euclidean", "rmsprop")]
#: The baselines: momentum, and whether hidden units are dropped.
DESCENTS = {"sgd": (0.0, False), "momentum": (0.9, False), "dropout": (0.0, True)}
#: Compiling takes up to a minute: these stand for the others.
COMPILED = (("overdamped", "diagonal", 3), ("momentum", "", 1))
TRACED = (
    ("overdamped", "quasi-diagonal", 3),
    ("overdamped", "euclidean", 1),
    ("underdamped, ubu", "diagonal", 1),
    ("nose-hoover", "diagonal", 3),
    ("adjusted, 3 steps", "quasi-diagonal", 3),
    ("dropout", "", 3),
    ("momentum", "", 1),
)
CHAINS = (1, 3)
#: So many that the kernels of a network's passes take other tiles.
MANY = 9
#: Enough for a graph of each kind of step to be warm, recorded and replayed.
STEPS, BURN_IN, BATCH, DATA = 12, 6, 20, 60
#: Of the largest entry of a tensor: float32 rounding, grown along the steps and by C.
TOLERANCE = 2e-5


class Case(NamedTuple):
    """``metric`` is a name of ``preconditioners.REGISTRY``, or "" for a baseline."""

    dynamics: str
    metric: str
    chains: int
    way: Way

    def __str__(self) -> str:
        return " · ".join([self.dynamics, self.metric or "-", str(self.chains), self.way])


def cases(device: str = "cpu") -> list[Case]:
    """All of them; ways that cannot take a case are left out."""
    pairs = [(d, m) for d in INTEGRATORS for m in metrics_of(d)]
    pairs += [(d, "") for d in DESCENTS]
    # A recorded run begins with eager steps: on CUDA these alone stand for few.
    step: list[Way] = ["graph"] if device == "cuda" else ["eager"]
    own: list[Way] = ["kernels"] if device == "cuda" else ["kernels", "native"]
    found = [Case(d, m, c, way) for d, m in pairs for c in CHAINS for way in step]
    beside = [("overdamped", m) for m in METRICS if m not in preconditioners.REGISTRY]
    beside += [(f, "quasi-diagonal") for f in FEATURES]
    found += [Case(d, m, max(CHAINS), way) for d, m in beside for way in step]
    found += [Case("overdamped", m, c, "kernels") for m in KERNEL_METRICS for c in CHAINS]
    found += [Case(d, m, max(CHAINS), "kernels") for d in WHOLE[1:] for m in KERNEL_METRICS]
    if device == "cuda":
        found += [Case("convolutions", m, c, "kernels") for m in KERNEL_METRICS for c in CHAINS]
        found += [Case("convolutions, baoab", m, 3, "kernels") for m in KERNEL_METRICS[2:]]
        found += [Case(d, "quasi-diagonal", MANY, "kernels") for d in WHOLE[::2]]
        found += [Case("overdamped", m, max(CHAINS), "eager") for m in METRICS]
        found += [Case(d, m, c, "whole") for d in WHOLE for m in KERNEL_METRICS for c in CHAINS]
    if "native" in own:
        found += [Case("overdamped", m, c, "native") for m in KERNEL_METRICS for c in CHAINS]
        found += [Case(d, "", c, "native") for d in DESCENTS for c in CHAINS]
    found += [Case(*which, "traced") for which in TRACED[: len(TRACED) if device == "cpu" else 2]]
    return found + [Case(*which, "compiled") for which in COMPILED]


def metrics_of(dynamics: str) -> list[str]:
    """The metrics that go with these dynamics."""
    return HEAT_METRICS if "less heat" in dynamics else list(preconditioners.REGISTRY)


#: The dynamics whose whole steps, and whose layers' updates, are a kernel.
WHOLE = ("overdamped", "underdamped, euler", "underdamped, baoab")
#: The metrics that our kernels know.
KERNEL_METRICS = ("euclidean", "rmsprop", "diagonal", "quasi-diagonal")


def network(kind: str = "") -> nn.Sequential:
    """The same weights every time; torch's generator is left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        if kind.startswith("convolutions"):
            return nn.Sequential(
                nn.Unflatten(1, (1, 2, 2)), nn.Conv2d(1, 5, 2, padding=1), nn.GroupNorm(1, 5),
                nn.Tanh(), nn.Conv2d(5, 4, 2, bias=False), nn.Flatten(), nn.Linear(16, 3),
            )  # fmt: skip
        return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))


def data(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Sixty samples in three classes."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(DATA, 4, generator=generator)
    return x.to(dtype), x[:, :3].argmax(1)


def _sampler(case: Case, dtype: torch.dtype, device: str) -> Langevin:
    dynamics, options = FEATURES.get(case.dynamics, (case.dynamics, {}))
    return Langevin(
        network(case.dynamics).to(dtype), likelihoods.Categorical(), chains=case.chains,
        device=device, preconditioner=METRICS[case.metric](), dynamics=INTEGRATORS[dynamics],
        compile=False, parallel=None, **{"step_size": 5e-3} | options,
    )  # fmt: skip


def _start(case: Case, dtype: torch.dtype, device: str) -> tuple[Any, InMemory, RatesTable, State]:
    x, y = data(dtype)
    if case.metric:
        sampler = _sampler(case, dtype, device)
        size = DATA if isinstance(sampler.dynamics, Adjusted | NoseHoover) else BATCH
        made, state = sampler.prepare((x, y), steps=STEPS, batch_size=size, burn_in=BURN_IN)
        assert isinstance(made.stream, InMemory)
        return made.dynamics, made.stream, made.rates, state
    chain = torch.arange(case.chains, device=device)
    momentum, drops = DESCENTS[case.dynamics]
    masks = random.origin(0, random.NOISE, chain) if drops else None
    rate = torch.full((case.chains,), 0.3 if drops else 0.0, dtype=dtype, device=device)
    params = {k: p.detach().to(device, dtype) for k, p in network().named_parameters()}
    start = fan_in_init(params, chain=chain, seed=0)
    descent = Descent.of(start, rate, masks, momentum)
    stream = InMemory(x, y, batch_size=BATCH, chain=chain, seed=0, device=torch.device(device))
    rates = RatesTable.build(0.1, stop=STEPS, chains=case.chains, dtype=dtype, device=device)
    return descent, stream, rates, descent.init(start)


def run_case(case: Case, device: str = "cpu", dtype: torch.dtype = torch.float32) -> State:
    """The state after the steps, run the case's way; fails where that way is not taken."""
    with _prepared(case.way):
        dynamics, stream, rates, state = _start(case, dtype, device)
        modes: dict[str, Any] = {"eager": "eager", "traced": "compiled", "compiled": "compiled"}
        one = Engine(
            dynamics, stream, rates, DATA,
            mode=modes.get(case.way, "auto"), fuse=case.way in ("kernels", *PLANNERS),
        )  # fmt: skip
        if case.dynamics == "exchange":
            sampler = _sampler(case, dtype, device)
            swaps = ReplicaExchange(one, sampler.problem, every=EXCHANGE, burn_in=0)
            one.pauses.append(swaps)
            state = swaps.begin(state)
        state, _ = one.run(state, 0, STEPS)
        expected = {"traced": "compiled"}.get(case.way, case.way)
        if expected not in one.way:
            raise RuntimeError(f"ran by {one.way!r} instead of {case.way!r}")
        adapting = case.metric not in ("", "euclidean") or "adjusted" in case.dynamics
        recorded = device == "cuda" and case.way not in ("eager", "whole")
        if recorded and one.recorded != 1 + adapting:
            raise RuntimeError(f"{one.recorded} graphs recorded instead of {1 + adapting}")
    return state


@contextmanager
def _prepared(way: Way) -> Iterator[None]:
    """The thresholds and choices under which a small network goes this way."""
    before = compiled.BACKEND, engines.PLANNERS[:]
    gain, whole_steps_planner.LEAST_GAIN = whole_steps_planner.LEAST_GAIN, 0.0
    compiled.BACKEND = "eager" if way == "traced" else "inductor"
    engines.PLANNERS[:] = [PLANNERS[way]] if way in PLANNERS else []
    convolutions = torch.backends.cudnn.allow_tf32  # by default: rounding far above float32's
    torch.backends.cudnn.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32 = convolutions
        compiled.BACKEND, engines.PLANNERS[:] = before
        whole_steps_planner.LEAST_GAIN = gain


def reference(case: Case) -> State:
    """Eager, on the CPU, in float64."""
    return run_case(case._replace(way="eager"), dtype=torch.float64)


def difference(found: State, expected: State) -> float:
    """The largest error of any tensor of the state, relative to its largest entry."""
    worst = 0.0
    for a, b in zip(pytree.tree_leaves(found), pytree.tree_leaves(expected), strict=True):
        error = (a.detach().cpu().double() - b.double()).abs().max()
        worst = max(worst, float(error / b.double().abs().max().clamp_min(1e-6)))
    return worst


def check(case: Case, device: str, expected: State) -> dict[str, Any]:
    """One line of the record."""
    return case._asdict() | optimizer_check.outcome(
        lambda: difference(run_case(case, device), expected), TOLERANCE
    )


def check_start(device: str) -> dict[str, Any]:
    """The row of where chains begin: an untrained network is recognised, and descended from."""
    case = Case("start and way down", "quasi-diagonal", 3, "graph" if device == "cuda" else "eager")

    def descended() -> float:
        rows = data(torch.float32)
        sampler = _sampler(case._replace(dynamics="overdamped"), torch.float32, device)
        found = starts.better(sampler.problem, rows, Settings().start)
        engine, state = sampler.prepare(rows, steps=1, batch_size=BATCH)
        assert isinstance(engine.stream, InMemory)
        before = mean_loss(sampler.frame, state, engine.stream)
        at = pytree.tree_map(torch.clone, state.params)
        end = descent.descend(
            sampler.frame, state, engine.stream, DATA, Settings().descent, mode="auto"
        )
        gain = float((before - mean_loss(sampler.frame, end, engine.stream)).min())
        if not found[1] or gain < 0.3:
            raise RuntimeError(f"went down from {found} by {gain:.2f} nats only")
        if any(not torch.equal(p, at[k]) for k, p in state.params.items()):
            raise RuntimeError("where it began was written over")
        return 0.0

    return case._asdict() | optimizer_check.outcome(descended, TOLERANCE)


def run_all(
    device: str, say: Callable[[str], None], ways: Sequence[str] = ()
) -> list[dict[str, Any]]:
    """Every case (of ``ways``, where some are named), references shared by the ways."""
    known: dict[Case, State] = {}
    rows = []
    for case in cases(device):
        if ways and case.way not in ways:
            continue
        key = case._replace(way="eager")
        if key not in known:
            known[key] = reference(case)
        rows.append(check(case, device, known[key]))
        say(optimizer_check.line(str(case), rows[-1]))
    rows.append(check_start(device))
    say(optimizer_check.line(rows[-1]["dynamics"], rows[-1]))
    return rows if ways else rows + optimizer_check.run_all(device, say)


def main(arguments: list[str] | None = None) -> int:
    """The command; its exit code is 1 where a case fails."""
    parser = argparse.ArgumentParser(prog="lab.matrix")
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--out", type=Path, help="a JSON file for the record")
    parser.add_argument("--ways", nargs="*", default=(), choices=get_args(Way))
    asked = parser.parse_args(arguments)
    if asked.device == "cuda" and not torch.cuda.is_available():
        print("there is no CUDA device here: try --device cpu", file=sys.stderr)
        return 2
    logging.getLogger("natural_langevin").setLevel(logging.WARNING)
    started = time.monotonic()
    rows = run_all(asked.device, lambda line: print(line, flush=True), asked.ways)
    failed = sum(row["problem"] is not None for row in rows)
    seconds = time.monotonic() - started
    print(f"{len(rows) - failed} of {len(rows)} cases agree, in {seconds:.0f} s")
    if asked.out is not None:
        record = {"device": asked.device, "seconds": round(seconds, 1), "cases": rows}
        asked.out.write_text(json.dumps(record | {"origin": origin(asked.device)}, indent=1) + "\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
