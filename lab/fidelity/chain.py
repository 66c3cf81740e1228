"""One run of one contender: steps for a given time, its predictions averaged along the way."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call

from lab.fidelity.contenders import Contender
from lab.fidelity.problem import PRIOR_VARIANCE, Problem
from lab.gpu import synchronise
from lab.models import resnet_frn
from natural_langevin import Langevin, likelihoods, priors

#: Steps until every kind of step has been recorded as a CUDA graph, and steps to time after that.
WARM_UP = {"cuda": 35, "cpu": 2}
TIMED = {"cuda": 40, "cpu": 3}


@dataclass(frozen=True)
class Settings:
    """What all contenders share. ``seconds``: of each of them, predictions included; ``chains``:
    of every sampler, one after the other, each for its share of the time; ``shift``: test images
    that are also looked at turned, blurred, noisy and pale (``shifted``)."""

    seconds: float = 120.0
    pilot: float = 10.0
    chains: int = 1
    batch_size: int = 1000
    looks: int = 120
    depth: int = 20
    width: int = 16
    seed: int = 0
    shift: int = 0
    device: str = "cpu"


class Entry(NamedTuple):
    """A contender on a problem: its step size, the seconds that it has, those of one step, and how
    often it is looked at."""

    contender: Contender
    problem: Problem
    settings: Settings
    eta: float
    seconds: float
    step_seconds: float
    looks: int


class Flat(nn.Module):
    """A network whose parameters are one long vector: one update instead of a hundred small ones.

    The same posterior where prior and metric treat every number alike."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        named = dict(network.named_parameters())
        # Those that stay in full precision under autocast come last: one cut, and no gradients of
        # zero for parts that are converted and not used.
        self._shapes = [
            {name: p.shape for name, p in named.items() if (".norm." in name) is full}
            for full in (False, True)
        ]
        order = [named[name] for shapes in self._shapes for name in shapes]
        self.theta = nn.Parameter(torch.cat([p.detach().flatten() for p in order]))
        self._network = [network.requires_grad_(False)]  # in a list: no parameters of this module

    def forward(self, x: Tensor) -> Tensor:
        """The network's, with the vector cut into its parameters."""
        sizes = [sum(map(math.prod, shapes.values())) for shapes in self._shapes]
        reduced, full = self.theta.split(sizes)
        if torch.is_autocast_enabled(x.device.type):  # converts layer by layer: once for all
            reduced = reduced.to(torch.get_autocast_dtype(x.device.type))
        params = _cut(reduced, self._shapes[0]) | _cut(full, self._shapes[1])
        return functional_call(self._network[0], params, (x,))


def _cut(theta: Tensor, shapes: dict[str, torch.Size]) -> dict[str, Tensor]:
    parts = theta.split([math.prod(shape) for shape in shapes.values()])
    cut = zip(shapes.items(), parts, strict=True)
    return {name: part.reshape(shape) for (name, shape), part in cut}


@dataclass
class Pool:
    """What the chains so far have come to: the sum of their iterates' test probabilities."""

    total: Tensor
    draws: int = 0
    chains: int = 0
    seconds: float = 0.0
    steps: int = 0

    @property
    def mean(self) -> Tensor:
        """Probabilities averaged over iterates, not their logarithms."""
        return self.total / self.draws


def reduced_precision(device: str) -> torch.dtype | None:
    """Forward passes in bfloat16 on GPUs; parameters, statistics and updates stay in float32."""
    return torch.bfloat16 if device.startswith("cuda") else None


def predicted(
    network: nn.Module, params: dict[str, Tensor], x: Tensor, settings: Settings
) -> Tensor:
    """Probabilities of the network with these parameters, (n, classes)."""
    reduced = reduced_precision(settings.device)
    autocast = torch.autocast(
        x.device.type, dtype=reduced or torch.bfloat16, enabled=reduced is not None
    )
    with torch.no_grad(), autocast:
        parts = [functional_call(network, params, (part,)) for part in x.split(2500)]
    return torch.cat(parts).float().softmax(-1)


@contextlib.contextmanager
def seeded(settings: Settings) -> Iterator[None]:
    """Masks that follow from the seed; torch's own random numbers stay where they were."""
    on_gpu = settings.device.startswith("cuda")
    with torch.random.fork_rng([torch.device(settings.device)] if on_gpu else []):
        torch.manual_seed(settings.seed)
        yield


def start(contender: Contender, settings: Settings, member: int = 0) -> nn.Module:
    """The network at its starting point."""
    network = resnet_frn(
        depth=settings.depth, width=settings.width, seed=1000 * settings.seed + member
    )
    if contender.at_prior:
        with torch.no_grad():
            for parameter in network.parameters():
                if parameter.ndim == 4:
                    parameter.mul_(math.sqrt(PRIOR_VARIANCE) / parameter.std())
    if contender.dropout:
        for block in network.blocks:
            first = block.get_submodule("first")
            block.first = nn.Sequential(first, nn.Dropout(contender.dropout))
    return Flat(network) if contender.elementwise else network


def sampler(contender: Contender, settings: Settings, eta: object, member: int = 0) -> Langevin:
    """The contender as a user would write it."""
    return Langevin(
        start(contender, settings, member),
        likelihoods.Categorical(),
        prior=priors.Gaussian(variance=PRIOR_VARIANCE),
        preconditioner=contender.metric(),
        dynamics=contender.dynamics,
        step_size=eta,  # type: ignore[arg-type]
        temperature=contender.temperature,
        chains=1,
        mean_rate=None,
        seed=1000 * settings.seed + member,
        device=settings.device,
        autocast=reduced_precision(settings.device),
    )


def pace(contender: Contender, problem: Problem, settings: Settings) -> float:
    """Seconds of a step, once everything is warm: the mean along a run, whose metric stands still
    after burn-in, from when on its statistics cost nothing."""
    kind = torch.device(settings.device).type
    descent, timed = WARM_UP[kind], TIMED[kind]
    both = descent + timed
    chain = sampler(contender, settings, contender.step_sizes[0])
    engine, state = chain.prepare(
        (problem.x, problem.y), steps=2 * both, batch_size=settings.batch_size, burn_in=both
    )
    seconds = []
    for first in (0, both):
        state, _ = engine.run(state, first, descent)
        began = now(settings.device)
        state, _ = engine.run(state, first + descent, timed)
        seconds.append((now(settings.device) - began) / timed)
    adapting = contender.kept_from / contender.cycles
    return adapting * seconds[0] + (1 - adapting) * seconds[1]


def follow(
    entry: Entry,
    say: Callable[[str], None],
    pool: Pool | None = None,
    draws: list[dict[str, Tensor]] | None = None,
) -> Iterator[tuple[dict[str, float], Pool]]:
    """After every look: seconds, epochs and draws so far, and what the chains have come to.

    The run is planned from the pace and broken off where it takes longer than that; seconds are
    those of steps and predictions, without compiling, recording and copying data, which the
    library's own loop would not tell apart. ``pool``: chains that have been run before, after which
    this one goes on; ``draws``: where to put the parameters whose predictions count."""
    contender, problem, settings, eta, seconds, step_seconds, looks = entry
    pool = pool or Pool(torch.zeros_like(problem.reference))
    epoch = len(problem.y) // settings.batch_size
    sampled = contender.members == 1
    runs = settings.chains if sampled else contender.members
    for member in range(pool.chains, runs):
        share = seconds / runs
        planned = max(looks, math.ceil(share / step_seconds))
        burn_in = max(1, math.ceil(planned * contender.kept_from / contender.cycles))
        chain = sampler(contender, settings, contender.schedule(eta, planned), member)
        engine, state = chain.prepare(
            (problem.x, problem.y), steps=planned, batch_size=settings.batch_size,
            burn_in=burn_in,
        )  # fmt: skip
        stops = [round(planned * (look + 1) / looks) for look in range(looks)]
        done = min(WARM_UP[torch.device(settings.device).type], stops[0])
        state, info = engine.run(state, 0, done)  # with what is set up once: counted at the pace
        own = done * step_seconds
        pool.seconds += own
        for stop in stops:
            began = now(settings.device)
            if stop > done:
                state, info = engine.run(state, done, stop - done)
            done, late = stop, stop == stops[-1]
            if kept(contender, done / planned) and (sampled or late):
                params = {name: p[0] for name, p in state.params.items()}
                pool.total = pool.total + predicted(chain.model, params, problem.test_x, settings)
                pool.draws += 1
                if draws is not None:
                    draws.append({name: p.clone() for name, p in params.items()})
            took = now(settings.device) - began
            own, pool.seconds = own + took, pool.seconds + took
            broken_off = own > 1.1 * share + 2 and sampled
            if late or broken_off:
                pool.chains, pool.steps = member + 1, pool.steps + done
            if pool.draws and (sampled or late):
                steps = pool.steps + (0 if pool.chains > member else done)
                found = {"seconds": pool.seconds, "epochs": steps / epoch, "draws": pool.draws}
                yield found | {"chain": member + 1}, pool
            if bool(info.diverged.any()):
                say(f"{contender.title}: diverged at step {done} with step size {eta:g}")
                return
            if broken_off:
                say(f"{contender.title}: broken off after {own:.0f} s, {done} of {planned} steps")
                break


def kept(contender: Contender, share: float) -> bool:
    """Whether an iterate at this share of the run is one of those that count."""
    return (share * contender.cycles - 1e-9) % 1.0 >= contender.kept_from


def now(device: str) -> float:
    """The clock, once the device has done what it was told to."""
    synchronise(device)
    return time.perf_counter()
