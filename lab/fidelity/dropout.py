"""MC dropout beside the samplers: one network, with units dropped while it learns and when asked.

A sampler's engine refuses networks that draw random numbers, so this is a loop of its own: the
ensemble's loss, momentum and cosine, and on a GPU a whole step as one recorded graph, whose masks
are new at every replay.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from lab import gpu
from lab.fidelity.chain import (
    TIMED,
    WARM_UP,
    Entry,
    Flat,
    Pool,
    Settings,
    now,
    predicted,
    reduced_precision,
    seeded,
    start,
)
from lab.fidelity.contenders import Contender
from lab.fidelity.problem import PRIOR_VARIANCE, Problem

MOMENTUM = 0.9
#: Masks whose predictions are averaged.
MASKS = 40


class Descent:
    """One network and its optimiser, minibatch by minibatch."""

    def __init__(self, contender: Contender, problem: Problem, settings: Settings) -> None:
        network = start(contender, settings).to(settings.device)
        assert isinstance(network, Flat)
        self.network, self.problem, self.settings = network, problem, settings
        self._velocity = torch.zeros_like(network.theta)
        self._rate = torch.zeros((), device=settings.device)
        self._rows = torch.zeros(settings.batch_size, dtype=torch.int64, device=settings.device)
        self._generator = torch.Generator().manual_seed(1000 * settings.seed)
        self._order = torch.empty(0, dtype=torch.int64)
        self._advance: Callable[[], None] = self._step

    def run(self, rates: list[float]) -> None:
        """A step for every step size; minibatches are cut from one order after the other."""
        for rate in rates:
            if len(self._order) < self.settings.batch_size:
                self._order = torch.randperm(len(self.problem.y), generator=self._generator)
                self._order = self._order.to(self.settings.device)
            self._rows.copy_(self._order[: self.settings.batch_size])
            self._order = self._order[self.settings.batch_size :]
            self._rate.fill_(rate)
            self._advance()

    def _step(self) -> None:
        """velocity <- .9 velocity - rate (gradient + theta / (N variance)); theta += velocity."""
        theta, problem = self.network.theta, self.problem
        reduced = reduced_precision(self.settings.device)
        device = self._rows.device.type
        with torch.autocast(device, dtype=reduced or torch.bfloat16, enabled=reduced is not None):
            outputs = self.network(problem.x[self._rows])
        loss = F.cross_entropy(outputs.float(), problem.y[self._rows])
        (gradient,) = torch.autograd.grad(loss, theta)
        with torch.no_grad():
            gradient = gradient.add(theta, alpha=1 / (len(problem.y) * PRIOR_VARIANCE))
            self._velocity.mul_(MOMENTUM).sub_(self._rate * gradient)
            theta.add_(self._velocity)

    def descent(self, rates: list[float]) -> None:
        """The first steps, with whatever is set up once; on a GPU all later ones are replays."""
        if not self._rows.is_cuda:
            self.run(rates)
            return
        gpu.beside(lambda: self.run(rates))
        self._advance = gpu.recorded(self._step, warm=0)


def pace(contender: Contender, problem: Problem, settings: Settings) -> float:
    """Seconds of a step, once everything is warm."""
    kind = torch.device(settings.device).type
    with seeded(settings):
        descent = Descent(contender, problem, settings)
        descent.descent([0.0] * WARM_UP[kind])
        began = now(settings.device)
        descent.run([0.0] * TIMED[kind])
        return (now(settings.device) - began) / TIMED[kind]


def follow(
    entry: Entry,
    say: Callable[[str], None],
    pool: Pool | None = None,
    draws: list[dict[str, Tensor]] | None = None,
) -> Iterator[tuple[dict[str, float], Pool]]:
    """As ``chain.follow``, with one look, at the end: predictions averaged over masks."""
    contender, problem, settings, eta, seconds, step_seconds, looks = entry
    pool = pool or Pool(torch.zeros_like(problem.reference))
    if pool.chains:
        return
    planned = max(looks, math.ceil(seconds / step_seconds))
    schedule = contender.schedule(eta, planned)
    rates = [float(schedule(step)) for step in range(planned)]
    first = min(WARM_UP[torch.device(settings.device).type], planned)
    with seeded(settings):
        descent = Descent(contender, problem, settings)
        descent.descent(rates[:first])  # with what is set up once: counted at the pace
        began = now(settings.device)
        descent.run(rates[first:])
        params = {"theta": descent.network.theta.detach()}
        if not bool(params["theta"].isfinite().all()):
            say(f"{contender.title}: diverged with step size {eta:g}")
            return
        for _ in range(MASKS):
            pool.total = pool.total + predicted(descent.network, params, problem.test_x, settings)
        pool.seconds = first * step_seconds + now(settings.device) - began
    pool.draws, pool.chains, pool.steps = MASKS, 1, planned
    if draws is not None:
        draws += [params] * MASKS
    epochs = planned / (len(problem.y) // settings.batch_size)
    yield {"seconds": pool.seconds, "epochs": epochs, "draws": MASKS, "chain": 1}, pool
