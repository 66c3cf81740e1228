"""Under ``torchrun --max-restarts=3``: FSDP2 in a loop of one's own, ended by SIGKILL in a step, in
a backward pass and in the middle of a checkpoint. The last attempt compares bit for bit."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn.functional as F
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)

from distributed.broken_off import Killer
from natural_langevin.distributed.join import join
from natural_langevin.optim import NaturalLangevin
from optim.sharded_worker import batch, optimizer_of, sharded

STEPS, EVERY = 14, 3


def tree(model: nn.Module, optimizer: NaturalLangevin) -> dict[str, Any]:
    return {
        "model": get_model_state_dict(model),
        "optimizer": get_optimizer_state_dict(model, optimizer),
    }


def resumed(model: nn.Module, optimizer: NaturalLangevin, folder: Path) -> int:
    """The step of the newest checkpoint that is whole: torch writes its index last."""
    whole = [int(path.parent.name) for path in folder.glob("*/.metadata")]
    if not whole:
        return 0
    optimizer.init_state()
    found = tree(model, optimizer)
    dcp.load(found, checkpoint_id=folder / str(max(whole)))
    set_model_state_dict(model, found["model"])
    set_optimizer_state_dict(model, optimizer, found["optimizer"])
    return max(whole)


def die(note: Path, where: str) -> None:
    note.write_text(where)
    os.kill(os.getpid(), signal.SIGKILL)


def arrange(attempt: int, rank: int, model: nn.Module, note: Path) -> None:
    """Who dies in this attempt, doing what."""
    match attempt, rank:
        case 0, 1:
            Killer(NaturalLangevin, "step", call=5, seed=3, note=note)
        case 1, 0:
            calls = []

            def dying(module: nn.Module, *_: Any) -> None:
                calls.append(module)
                if len(calls) == 2:  # in the second step of this attempt
                    die(note, "backward")

            model.head.register_full_backward_pre_hook(dying)
        case 2, 0:
            dcp.FileSystemWriter.finish = lambda *_, **__: die(note, "checkpoint")


def trained(rank: int, folder: Path | None, attempt: int = 3) -> tuple[list[Any], int]:
    """The bits that this rank ends with, and where the run was taken up."""
    model = sharded()
    optimizer = optimizer_of(model, "quasi-diagonal")
    first = 0
    if folder is not None:
        first = resumed(model, optimizer, folder / "checkpoints")
        arrange(attempt, rank, model, folder / f"killed-{attempt}")
    for step in range(first, STEPS):
        x, y = (part.chunk(2)[rank] for part in batch(step))
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        if folder is not None and (step + 1) % EVERY == 0:
            dcp.save(tree(model, optimizer), checkpoint_id=folder / "checkpoints" / str(step + 1))
    ends = [*optimizer.sampled().values(), *optimizer.mean().values()]
    return [value.full_tensor().tolist() for value in ends], first


def main(folder: Path) -> None:
    join("cpu")
    torch.set_num_threads(1)
    rank, attempt = dist.get_rank(), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    found, first = trained(rank, folder, attempt)
    undisturbed, _ = trained(rank, None)
    outcome = {"attempts": attempt + 1, "from": first, "same": found == undisturbed}
    (folder / f"found-{rank}.json").write_text(json.dumps(outcome))
    dist.barrier()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
