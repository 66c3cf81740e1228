"""What is to be measured: options, their defaults on this machine, and what cannot be had."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from lab.speed.problems import NETWORKS, USUAL

SECTIONS = ("steps", "memory", "growth", "latency", "samples")
#: Seconds per contender and repeat.
BLOCK_SECONDS = {"cpu": 0.5, "cuda": 0.2}


class BenchError(ValueError):
    """An option that cannot be had; the message says what can."""


@dataclass(frozen=True)
class Settings:
    """What is measured. Empty means the device's own defaults; of ``chains``, the network's."""

    device: str = "auto"
    chains: tuple[int, ...] = ()
    repeats: int = 0
    quick: bool = False
    sections: tuple[str, ...] = ()
    networks: tuple[str, ...] = ()
    only: tuple[str, ...] = ()  # contenders whose name holds one of these (and the reference)
    compile: bool = True
    precision: str = ""
    seed: int = 0
    resume: bool = False  # keeps what the file holds of other sections and networks
    threads: int = 0
    block_seconds: float = 0.0
    #: Sizes, for tests: the defaults are the paper's network.
    sizes: dict[str, Any] = field(default_factory=dict)

    def resolved(self) -> Settings:
        """With every default filled in; an impossible wish is a ``BenchError``."""
        device = _device(self.device)
        kind = torch.device(device).type
        _known("section", self.sections, SECTIONS)
        _known("network", self.networks, NETWORKS)
        precision = self.precision or ("high" if kind == "cuda" else "highest")
        _known("precision", (precision,), ("highest", "high", "medium"))
        for name in ("repeats", "threads", "block_seconds"):
            if getattr(self, name) < 0:
                raise BenchError(f"{name} must not be negative, got {getattr(self, name)}")
        if any(count < 1 for count in self.chains):
            raise BenchError(f"chains must be at least 1, got {list(self.chains)}")
        quick = self.quick
        return replace(
            self,
            device=device,
            chains=self.chains or ((1,) if quick else ()),
            repeats=self.repeats or (3 if quick else 10),
            sections=self.sections or (("steps",) if quick else SECTIONS),
            networks=self.networks or (("mlp",) if quick else USUAL),
            precision=precision,
            threads=self.threads or os.cpu_count() or 1,
            block_seconds=self.block_seconds or BLOCK_SECONDS[kind] / (2 if quick else 1),
        )


def _device(name: str) -> str:
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        found = torch.device(name)
    except RuntimeError:
        raise BenchError(f"unknown device {name!r}: use auto, cpu or cuda") from None
    if found.type not in BLOCK_SECONDS:
        raise BenchError(f"the benchmark knows cpu and cuda, got {name!r}")
    if found.type == "cuda" and not torch.cuda.is_available():
        raise BenchError(f"no CUDA device was found for --device {name}: use --device cpu")
    return name


def _known(what: str, given: Sequence[str], known: Sequence[str]) -> None:
    wrong = [name for name in given if name not in known]
    if wrong:
        raise BenchError(f"unknown {what} {', '.join(wrong)}: choose among {', '.join(known)}")
