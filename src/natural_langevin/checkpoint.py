"""Checkpoints: a tree of tensors on disk as safetensors, whole or not at all. Never pickle."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor
from torch.utils import _pytree as pytree

from natural_langevin.atomic import staged


class CheckpointError(ValueError):
    """A checkpoint that cannot be read, or is not of the expected run."""


def save_tree(path: Path, tree: Any, metadata: dict[str, str] | None = None) -> None:
    """Writes every tensor of the tree under its path in it; scalars as 0-d tensors stay 0-d."""
    leaves, _ = pytree.tree_flatten_with_path(tree)
    tensors = {pytree.keystr(where): leaf.detach().cpu().contiguous() for where, leaf in leaves}
    payload = save(tensors, metadata=metadata)
    with staged(path) as handle:
        handle.write(payload)


def load_tree(path: Path, like: Any) -> tuple[Any, dict[str, str]]:
    """Reads a tree of the same names, shapes and dtypes as ``like``, on ``like``'s devices."""
    leaves, structure = pytree.tree_flatten_with_path(like)
    expected = {pytree.keystr(where): leaf for where, leaf in leaves}
    try:
        with safe_open(path, framework="pt") as file:
            found = set(file.keys())
            if found != set(expected):
                odd = sorted(found ^ set(expected))[:4]
                raise CheckpointError(f"{path.name} holds other tensors than this run: {odd}")
            loaded = [
                _matching(path, key, file.get_tensor(key), leaf) for key, leaf in expected.items()
            ]
            metadata = file.metadata() or {}
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"cannot read {path.name}: {error}") from error
    return pytree.tree_unflatten(loaded, structure), metadata


def _matching(path: Path, key: str, value: Tensor, like: Tensor) -> Tensor:
    if value.shape != like.shape or value.dtype != like.dtype:
        raise CheckpointError(
            f"{path.name}: {key} is {value.dtype} {tuple(value.shape)}, this run needs "
            f"{like.dtype} {tuple(like.shape)}"
        )
    return value.to(like.device)


def copy_tree_(into: Any, values: Any) -> None:
    """Overwrites the tensors of one tree with another's, so that captured buffers stay valid."""

    def copy(old: Tensor, new: Tensor) -> Tensor:
        return old.copy_(new)

    with torch.no_grad():
        pytree.tree_map(copy, into, values)
