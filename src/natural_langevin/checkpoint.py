"""Checkpoints: a tree of tensors on disk as safetensors, whole or not at all. Never pickle."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor
from torch.utils import _pytree as pytree

from natural_langevin.atomic import remove_leftovers, staged


class CheckpointError(ValueError):
    """A checkpoint that cannot be read, or is not of the expected run."""


def save_tree(path: Path, tree: Any, metadata: dict[str, str] | None = None) -> None:
    """Writes every tensor of the tree under its path in it; scalars as 0-d tensors stay 0-d."""
    payload = _serialise(tree, metadata)
    with staged(path) as handle:
        handle.write(payload)


def _serialise(tree: Any, metadata: dict[str, str] | None) -> bytes:
    leaves, _ = pytree.tree_flatten_with_path(tree)
    tensors = {pytree.keystr(where): leaf.detach().cpu().contiguous() for where, leaf in leaves}
    return save(tensors, metadata=metadata)


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


class RunCheckpoint:
    """The checkpoint of one run in a folder: the newest, and the one before it.

    ``config`` says which run it is; a folder of another run is refused with the difference named.
    """

    def __init__(self, folder: Path, config: dict[str, Any]) -> None:
        self._newest = folder / "checkpoint.safetensors"
        self._previous = folder / "previous.safetensors"
        self._config = json.loads(json.dumps(config))
        folder.mkdir(parents=True, exist_ok=True)
        remove_leftovers(folder)

    def save(self, tree: Any) -> None:
        """At every moment of this, one whole checkpoint is there."""
        payload = _serialise(tree, {"config": json.dumps(self._config)})
        with staged(self._newest) as handle:
            handle.write(payload)
            handle.flush()
            os.fsync(handle.fileno())  # on the disk before the older one loses its name
            if self._newest.exists():
                self._newest.replace(self._previous)

    def load(self, like: Any) -> Any | None:
        """The newest readable checkpoint of this run, or None in an empty folder."""
        there = [path for path in (self._newest, self._previous) if path.exists()]
        for path in there:
            try:
                self._check(path)
                return load_tree(path, like)[0]
            except CheckpointError:
                if path == there[-1]:
                    raise
        return None

    def _check(self, path: Path) -> None:
        try:
            with safe_open(path, framework="pt") as file:
                found = json.loads((file.metadata() or {}).get("config", "{}"))
        except (SafetensorError, OSError, ValueError) as error:
            raise CheckpointError(f"cannot read {path.name}: {error}") from error
        differing = [k for k in self._config | found if self._config.get(k) != found.get(k)]
        if differing:
            key = differing[0]
            raise CheckpointError(
                f"{path.parent} holds a checkpoint of another run: {', '.join(differing)} differ "
                f"({key}: {found.get(key)!r} there, {self._config.get(key)!r} here). Use another "
                "folder, or the same settings and data"
            )


def copy_tree_(into: Any, values: Any) -> None:
    """Overwrites the tensors of one tree with another's, so that captured buffers stay valid."""

    def copy(old: Tensor, new: Tensor) -> Tensor:
        return old.copy_(new)

    with torch.no_grad():
        pytree.tree_map(copy, into, values)
