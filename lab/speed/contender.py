"""Who takes part: a name, a number of chains, and a way to advance by some steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from lab.speed.problems import NETWORKS, Problem

Status = Literal["measured", "not installed", "no rule", "left out", "failed"]

#: Launches that many steps; the clock's owner waits for the device.
Advance = Callable[[int], None]

#: (weight, bias) of every layer of a multilayer perceptron, with a chain axis.
Layers = list[tuple[Tensor, Tensor]]


class Unavailable(Exception):  # noqa: N818 (an answer rather than an error)
    """A contender that cannot take part, and why: it stays in the table under this status."""

    def __init__(self, status: Status, reason: str) -> None:
        super().__init__(reason)
        self.status: Status = status
        self.reason = " ".join(reason.split())


@dataclass(frozen=True)
class Ready:
    """What building a contender gives."""

    advance: Advance
    position: Callable[[], Tensor]  # all parameters (of the first chain), flat, on the CPU
    multiple: int = 1  # steps go in this many at a time
    check: Callable[[], str] = lambda: ""  # afterwards: what a reader of the figures must know
    way: Callable[[], str] = lambda: ""  # of our own: which way the steps went
    layers: Callable[[], Layers] = list


@dataclass(frozen=True)
class Contender:
    """``build(problem, chains)`` makes it ready, or raises ``Unavailable``."""

    name: str
    build: Callable[[Problem, int], Ready]
    description: str
    chains: int = 1
    compiled: bool = False  # whether its first step compiles with torch.compile
    ours: bool = False
    many_chains: bool = False  # whether it can advance several chains at once
    networks: tuple[str, ...] = NETWORKS

    @property
    def label(self) -> str:
        """Its name in tables, with the number of chains where there are several."""
        return f"{self.name} x {self.chains}" if self.chains > 1 else self.name
