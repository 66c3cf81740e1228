"""What every rank does in ``test_optimizer_ranks.py``: a loop with DistributedDataParallel."""

from __future__ import annotations

import os
import signal
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from natural_langevin import likelihoods
from natural_langevin.distributed.group import Group
from natural_langevin.optim import NaturalLangevin, agreement

SETTINGS: dict[str, Any] = {"num_data": 60, "lr": 1e-3, "seed": 3}


def batch(rank: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(10 + rank)
    return torch.randn(6, 3, generator=generator), torch.arange(6) % 2


class Loop:
    """A wrapped network and its optimizer; ``own`` are the settings of rank 1 alone."""

    def __init__(self, group: Group, process_group: Any = None, **own: Any) -> None:
        self.rank = group.rank
        torch.manual_seed(0)
        network = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
        self.model = DistributedDataParallel(network, process_group=process_group)
        settings = SETTINGS | (own if self.rank == 1 else {})
        self.optimizer = NaturalLangevin(self.model, likelihoods.Categorical(), **settings)

    def backward(self) -> None:
        x, y = batch(self.rank)
        self.optimizer.zero_grad()
        F.cross_entropy(self.model(x), y).backward()

    def run(self, steps: int) -> list[float]:
        for _ in range(steps):
            self.backward()
            self.optimizer.step()
        return [float(p.detach().sum()) for p in self.model.parameters()]


def check_alike(group: Group, folder: Path) -> list[float]:
    return Loop(group).run(5)


def check_seed(group: Group, folder: Path) -> None:
    Loop(group, seed=4).run(1)


def check_chain(group: Group, folder: Path) -> None:
    Loop(group, chain=1).run(1)


def check_num_data(group: Group, folder: Path) -> None:
    Loop(group, num_data=61).run(1)


def check_temperature(group: Group, folder: Path) -> None:
    Loop(group, temperature=0.5).run(1)


def check_lr(group: Group, folder: Path) -> None:
    Loop(group, lr=2e-3).run(1)


def check_likelihood(group: Group, folder: Path) -> None:
    loop = Loop(group)
    if loop.rank == 1:
        loop.optimizer.mean_rate = 0.25
    loop.run(1)


def check_lr_later(group: Group, folder: Path) -> int:
    """A scheduler that only one rank steps."""
    loop = Loop(group)
    loop.run(3)
    if loop.rank == 1:
        loop.optimizer.param_groups[0]["lr"] *= 0.5
    loop.run(1)
    return loop.optimizer.steps


def check_parameters(group: Group, folder: Path) -> None:
    """They drift apart, and are compared now and then."""
    loop = Loop(group)
    loop.run(2)
    if loop.rank == 1:
        with torch.no_grad():
            loop.optimizer.sampled()["2.weight"][0, 0] += 1e-6
    every, agreement.EVERY = agreement.EVERY, 4
    try:
        loop.run(6)
    finally:
        agreement.EVERY = every


def check_forward_between(group: Group, folder: Path) -> list[float]:
    """One rank looks at a validation batch, with gradients, between backward and step."""
    loop = Loop(group)
    loop.run(2)
    loop.backward()
    if loop.rank == 1:
        loop.model.module(torch.randn(5, 3))
    loop.optimizer.step()
    return loop.run(2)


def check_raises_in_step(group: Group, folder: Path) -> None:
    """A rank whose gradients are gone when it comes to the step."""
    loop = Loop(group)
    loop.run(1)
    loop.backward()
    if loop.rank == 1:
        for p in loop.model.parameters():
            p.grad = None
    loop.optimizer.step()


def check_raises_in_closure(group: Group, folder: Path) -> None:
    loop = Loop(group)

    def closure() -> None:
        if loop.rank == 1:
            raise FileNotFoundError("there is no shard 17")

    loop.backward()
    loop.optimizer.step(closure)


def check_goes_on(group: Group, folder: Path) -> list[float]:
    """After an error that all ranks had, all of them may go on."""
    loop = Loop(group)
    loop.run(1)
    loop.backward()
    if loop.rank == 0:
        loop.model.module[0].weight.grad = None
    try:
        loop.optimizer.step()
    except RuntimeError:
        return loop.run(2)
    return []


def check_not_finite(group: Group, folder: Path) -> None:
    loop = Loop(group)
    loop.backward()
    if loop.rank == 1:
        loop.model.module[0].weight.grad[0, 0] = float("nan")
    loop.optimizer.step()


def check_loss_scales(group: Group, folder: Path) -> list[float]:
    """Gradients of 2^68 times their size: the same weights as without."""
    loop = Loop(group)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**68, growth_interval=10**6)
    for _ in range(5):
        x, y = batch(loop.rank)
        loop.optimizer.zero_grad()
        scaler.scale(F.cross_entropy(loop.model(x), y)).backward()
        scaler.step(loop.optimizer)
        scaler.update()
    return [float(p.detach().sum()) for p in loop.model.parameters()]


def check_stays_away(group: Group, folder: Path) -> None:
    """Last of all: rank 1 is stopped when the others take the step, and woken afterwards."""
    limited = dist.new_group(timeout=timedelta(seconds=60))
    loop = Loop(group, process_group=limited)
    loop.run(1)
    dist.distributed_c10d._set_pg_timeout(timedelta(seconds=1), limited)
    (other,) = group.exchange("who is who", str(os.getpid()))[1:]
    loop.backward()
    if loop.rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
        return
    try:
        loop.optimizer.step()
    finally:
        os.kill(int(other), signal.SIGCONT)
