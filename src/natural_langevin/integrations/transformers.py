"""Transformers: a callback that collects what ``NaturalLangevin`` draws in a ``Trainer``.

    network = Logits(without_dropout(AutoModelForSequenceClassification.from_pretrained(NAME)))
    network.model.base_model.requires_grad_(False)  # sample the head alone
    optimizer = NaturalLangevin(network, Categorical(), num_data=len(data), lr=1e-3)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
    collect = CollectPosterior(burn_in=500, thin=50)
    Trainer(network, arguments, train_dataset=data, optimizers=(optimizer, schedule),
            callbacks=[collect], compute_loss_func=cross_entropy).train()
    collect.posterior.predict(input_ids)

``Logits`` makes of the model a network of one tensor, from token ids to logits, and
``cross_entropy`` computes the loss outside of it: both are needed to tell single samples apart, and
by ``posterior.predict``. A checkpoint of the trainer holds the iterates kept so far in a file of
its own: ``trainer.train(resume_from_checkpoint=True)`` goes on with the same chain. Set
``max_grad_norm=0`` in the arguments: clipped gradients are a departure from the posterior.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from natural_langevin._internal.atomic import write
from natural_langevin._internal.extras import needing
from natural_langevin.integrations.collect_posterior import PosteriorCallback
from natural_langevin.posterior.storage import StorageError

with needing("the Transformers callback needs transformers", "transformers"):
    from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

#: Beside optimizer.pt in every checkpoint of the trainer.
FILE = "langevin_samples.safetensors"


class Logits(nn.Module):
    """A model with a head as a network of one tensor: token ids (B, T) to its logits.

    Tokens of the padding are masked; ``pad_token_id`` is the configuration's unless it is given."""

    def __init__(self, model: nn.Module, *, pad_token_id: int | None = None) -> None:
        super().__init__()
        self.model = model
        config: Any = model.config
        self.pad_token_id = config.pad_token_id if pad_token_id is None else pad_token_id

    def forward(self, input_ids: Tensor, labels: None = None) -> Tensor:
        """``labels`` is never given: the trainer looks for the name to know its labels' column."""
        mask = None if self.pad_token_id is None else (input_ids != self.pad_token_id).long()
        return self.model(input_ids=input_ids, attention_mask=mask).logits


def cross_entropy(outputs: Tensor, labels: Tensor, num_items_in_batch: Any = None) -> Tensor:
    """The mean loss of ``Logits``, as ``Trainer(compute_loss_func=...)`` calls it.

    ``num_items_in_batch`` counts the labels of all batches that are accumulated into one update;
    the losses then add up to the mean over all of them."""
    if num_items_in_batch is None:
        return F.cross_entropy(outputs, labels)
    return F.cross_entropy(outputs, labels, reduction="sum") / num_items_in_batch


class CollectPosterior(PosteriorCallback, TrainerCallback):
    """For ``Trainer(callbacks=[...])``; ``posterior`` at any time after training has begun.

    ``checkpoint``: the folder that is resumed from, needed only where it is not the trainer's own
    ``output_dir/checkpoint-STEP``."""

    def __init__(self, *, checkpoint: str | os.PathLike[str] | None = None, **options: Any) -> None:
        super().__init__(**options)
        self._checkpoint = None if checkpoint is None else Path(checkpoint)

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        optimizer: torch.optim.Optimizer | None = None,
        **_: Any,
    ) -> None:
        if state.global_step:
            self._pending = read_samples(self._checkpoint or folder(args, state))
        self.begin([optimizer])

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        if state.is_world_process_zero and self._collector is not None:
            write_samples(folder(args, state), self._collector.state_dict())


def folder(args: TrainingArguments, state: TrainerState) -> Path:
    """Where the trainer puts the checkpoint of this step."""
    return Path(str(args.output_dir)) / f"checkpoint-{state.global_step}"


def write_samples(where: Path, state: dict[str, Any]) -> None:
    """A collector's ``state_dict`` as safetensors: iterate k of parameter p is ``k/p``."""
    from safetensors.torch import save

    tensors = {
        f"{step}/{name}": value.contiguous()
        for step, values in state["kept"].items()
        for name, value in values.items()
    }
    about = {"burn_in": state["burn_in"], "thin": state["thin"], "trace": state["trace"].tolist()}
    write(where / FILE, save(tensors, metadata={"collector": json.dumps(about)}))


def read_samples(where: Path) -> dict[str, Any]:
    """What ``write_samples`` wrote."""
    from safetensors import SafetensorError, safe_open

    path = where / FILE
    kept: dict[str, dict[str, torch.Tensor]] = {}
    try:
        with safe_open(path, framework="pt") as file:
            about = json.loads(file.metadata()["collector"])
            for key in sorted(file.keys()):
                step, _, name = key.partition("/")
                kept.setdefault(step, {})[name] = file.get_tensor(key)
        trace = torch.tensor(about["trace"], dtype=torch.float64).reshape(-1, 2)
        ordered = {step: kept[step] for step in sorted(kept, key=int)}
        return {"burn_in": about["burn_in"], "thin": about["thin"], "kept": ordered, "trace": trace}
    except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
        raise StorageError(
            f"training resumes from a checkpoint, but {path} cannot be read "
            f"({type(error).__name__}: {error}): give CollectPosterior(checkpoint=FOLDER) the "
            "folder that is resumed from; it must have been trained with this callback"
        ) from None
