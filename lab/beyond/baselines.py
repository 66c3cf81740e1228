"""Dropout, MC-dropout and ensembles of SGD networks on the same inputs and the same split.

All of them are networks of one run: plain SGD is a dropout rate of 0. Step size halved six times
along a run.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lab.beyond.inputs import Inputs, mapped, views
from lab.beyond.running import Ran, advance
from lab.beyond.sampling import Bench
from natural_langevin import models, random, schedules
from natural_langevin.cli.experiments.table1.baseline_stages import mc_dropout
from natural_langevin.data.streams import InMemory
from natural_langevin.dynamics import Descent, RatesTable
from natural_langevin.dynamics.descent import forward
from natural_langevin.execution.engine import Engine, choose_mode


class Network(NamedTuple):
    """What a network is trained with; ``rate`` 0: without dropout."""

    inputs: Inputs
    step_size: float
    rate: float

    def as_dict(self) -> dict[str, Any]:
        """Plain numbers, for JSON."""
        return {**self.inputs._asdict(), "step_size": self.step_size, "rate": self.rate}


class Trained(NamedTuple):
    """The networks, and how long they took."""

    networks: list[Network]
    params: dict[str, Tensor]
    masks: Tensor  # where the masks of MC-dropout begin
    ran: Ran


class _Nothing:
    """Keeps no iterates: a baseline is its last one."""

    def tree(self) -> dict[str, Any]:
        """Nothing."""
        return {}

    def keep(self, state: Any) -> None:
        """Nothing."""


def grid(bench: Bench, inputs: Sequence[Inputs]) -> list[Network]:
    """Inputs x step size x rate."""
    protocol = bench.protocol
    rates = (0.0, *protocol.dropout_rates)
    return [Network(*n) for n in product(inputs, protocol.sgd_step_sizes, rates)]


def train(bench: Bench, part: str, networks: list[Network], *, final: bool) -> Trained:
    """Trains all networks as one run, until done or until the part's time is over."""
    protocol, device, count = bench.protocol, bench.device, len(networks)
    steps = protocol.steps if final else protocol.select_steps
    x, y, _, _ = bench.part(final=final)
    data = views(x, y, [n.inputs for n in networks])
    chain = torch.arange(count, device=device)
    stream = InMemory(
        data.x, data.y, batch_size=protocol.batch_size, chain=chain, seed=protocol.seed,
        device=device, rows=data.rows,
    )  # fmt: skip
    etas = torch.tensor([n.step_size for n in networks])
    schedule = schedules.halving(etas, every=max(1, steps // 6))
    rates = RatesTable.build(schedule, stop=steps, chains=count, device=device)
    dropout = torch.tensor([n.rate for n in networks], device=device)
    masks = random.origin(protocol.seed, random.NOISE, chain)
    template = {k: p.detach().to(device) for k, p in bench.network().named_parameters()}
    start = models.fan_in_init(template, chain=chain, seed=protocol.seed)
    descent = Descent.of(start, dropout, masks)
    state = descent.init(start)
    engine = Engine(descent, stream, rates, stream.num_data, mode=choose_mode(bench.compile))
    engine.notify = bench.say
    config = {"part": part, "networks": [n.as_dict() for n in networks]} | protocol.as_dict()
    ran = advance(
        engine, state, _Nothing(), steps=steps, burn_in=steps, thin=1000,
        folder=bench.folder / part, config=config, deadline=bench.deadline, say=bench.say,
    )  # fmt: skip
    at_test = random.origin(protocol.seed, random.LABELS, chain)
    return Trained(networks, ran.state.params, at_test, ran)


def predict(trained: Trained, x: Tensor, *, masks: int = 0) -> Tensor:
    """Probabilities (network, n, classes); with ``masks``, averaged over so many dropout masks."""
    found: dict[int, Tensor] = {}
    for inputs in dict.fromkeys(n.inputs for n in trained.networks):
        chosen = [k for k, n in enumerate(trained.networks) if n.inputs == inputs]
        params = {k: p[chosen] for k, p in trained.params.items()}
        images = mapped(x, inputs)
        rate = images.new_tensor([trained.networks[k].rate for k in chosen])
        with torch.no_grad():
            if masks:
                p = mc_dropout(params, images, rate, trained.masks[chosen], masks)
            else:
                z = [forward(params, rows, rate, None) for rows in images.split(5000)]
                p = torch.cat(z, dim=1).double().softmax(-1)
        found |= dict(zip(chosen, p, strict=True))
    return torch.stack([found[k] for k in range(len(trained.networks))])
