"""A long run in pieces: advance, keep iterates, look at the loss, and never lose a minute.

Every ``CHECKPOINT_SECONDS`` the whole state is written to disk, whole or not at all. Since every
draw is a function of its address, a run continued from there ends with the same numbers.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from natural_langevin._internal.progress import Progress
from natural_langevin._internal.trees import copy_tree_
from natural_langevin.execution.engine import Engine
from natural_langevin.sampling.checkpoint import CheckpointError, load_tree, save_tree

CHECKPOINT_SECONDS = 30.0
LOOKS = 100


class DivergedError(RuntimeError):
    """Some chains became non-finite; the argument counts them."""


@dataclass
class Outcome:
    """The last state, the training losses (look, chain) at their steps, and training seconds.

    The seconds are those of all updates at the pace they had once compiled; scoring is left out.
    """

    state: Any
    steps: list[int]
    losses: Tensor
    seconds: float


def run_in_pieces(
    engine: Engine,
    state: Any,
    *,
    steps: int,
    burn_in: int,
    thin: int,
    keep: Callable[[Any], None],
    kept_state: dict[str, Any],
    checkpoint: Path,
    title: str,
    progress: bool,
    stop_if_diverged: bool = False,
) -> Outcome:
    """Runs to ``steps`` updates, calling ``keep(state)`` at every kept iterate.

    ``kept_state`` is the tree of tensors that ``keep`` writes into: it travels in the checkpoint.
    """
    every = max(1, steps // LOOKS)
    chains = len(next(iter(state.params.values())))
    losses = torch.full((steps // every, chains), torch.nan)
    clock = torch.zeros(2, dtype=torch.float64)  # seconds, and the updates they were spent on
    everything = {"state": state, "kept": kept_state, "losses": losses, "clock": clock}
    if checkpoint.exists():
        _restore(checkpoint, everything)
    done = int(state.step)
    saved, warm = time.monotonic(), False
    with Progress(title, steps, shown=progress) as bar:
        while done < steps:
            target = min(_next(done, burn_in, thin), every * (done // every + 1), steps)
            started, before = time.monotonic(), done
            state, info = engine.run(state, done, target - done)
            everything["state"] = state
            done = target
            if done % every == 0:
                losses[done // every - 1] = info.loss.detach().float().cpu()  # waits for the device
                broken = int((~torch.isfinite(losses[done // every - 1])).sum())
                if stop_if_diverged and broken:
                    raise DivergedError(broken)
                loss, kept = losses[done // every - 1].nanmean(), max(0, done - burn_in) // thin
                bar.update(done, f"loss {float(loss):.4f}  {kept} kept")
            keeping = done > burn_in and (done - burn_in) % thin == 0
            if keeping and info.loss.is_cuda:
                torch.cuda.synchronize()
            if warm:  # the first piece compiles and captures
                clock += torch.tensor([time.monotonic() - started, done - before])
            warm = True
            if keeping:
                keep(state)
            if time.monotonic() - saved > CHECKPOINT_SECONDS and done < steps:
                save_tree(checkpoint, everything)
                saved = time.monotonic()
    looks = [every * (index + 1) for index in range(len(losses))]
    return Outcome(state, looks, losses, steps * float(clock[0] / clock[1].clamp_min(1)))


def _next(done: int, burn_in: int, thin: int) -> int:
    """The next kept iterate after ``done``."""
    return burn_in + thin * (max(0, done - burn_in) // thin + 1)


def _restore(path: Path, everything: dict[str, Any]) -> None:
    try:
        loaded, _ = load_tree(path, everything)
    except CheckpointError:
        path.unlink(missing_ok=True)  # of another layout: this stage starts again
        return
    copy_tree_(everything, loaded)
