"""How ``torch.distributed.checkpoint`` keeps our checkpoints: as tensor files and JSON, no pickle.

Torch plans who writes what (of several equal copies, one) and gathers the plan at one rank; here
are the two ends of it. Every rank writes one file of tensors, ``part-00003.safetensors``, with a
check sum. When all of them are on the disk, one rank writes ``index.json``, which says in which
file each tensor is: a folder with an index is a whole checkpoint, and one without is none.
Torch's own safetensors storage has no check sums, and writes no such index of shards at the end.
"""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner, SavePlan, SavePlanner
from torch.distributed.checkpoint.storage import StorageReader, StorageWriter, WriteResult
from torch.futures import Future

from natural_langevin._internal import tensorfile
from natural_langevin._internal.atomic import staged, write
from natural_langevin._internal.checked_json import checksum, with_checksum
from natural_langevin._internal.tensorfile import Spec, StorageError
from natural_langevin.run.checkpoint import SHARDED_INDEX

_BY_NAME = {code: dtype for dtype, code in tensorfile.DTYPES.items()}


class ShardWriter(StorageWriter):
    """Writes into ``folder``, which is there; ``about`` goes into the index."""

    def __init__(self, folder: Path, about: dict[str, Any]) -> None:
        self.folder, self._about = folder, about

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        pass

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        pass

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        return [
            dataclasses.replace(plan, storage_data=f"part-{rank:05d}.safetensors")
            for rank, plan in enumerate(plans)
        ]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        tensors: dict[str, Any] = {i.index.fqn: planner.resolve_data(i) for i in plan.items}
        if tensors:
            with staged(self.folder / plan.storage_data) as handle:
                tensorfile.write_tensors(handle, tensors, {})
        return _done(
            [
                WriteResult(item.index, tensors[item.index.fqn].nbytes, plan.storage_data)
                for item in plan.items
            ]
        )

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        tensors = {}
        for result in (one for of_rank in results for one in of_rank):
            about: Any = metadata.state_dict_metadata[result.index.fqn]
            code = tensorfile.DTYPES[about.properties.dtype]
            tensors[result.index.fqn] = [result.storage_data, code, list(about.size)]
        text = json.dumps(with_checksum({"format": 1, **self._about, "tensors": tensors}))
        write(self.folder / SHARDED_INDEX, text.encode())

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return True


class ShardReader(StorageReader):
    """Reads the parts of ``folder`` that hold what is asked for, and verifies their sums."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._index = read_tensors(folder)

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        pass

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        tensors: dict[str, Any] = {}
        for name, (_, (dtype, shape)) in self._index.items():
            whole = ChunkStorageMetadata(torch.Size([0] * len(shape)), torch.Size(shape))
            tensors[name] = TensorStorageMetadata(
                TensorProperties(dtype=dtype), torch.Size(shape), [whole]
            )
        files = {MetadataIndex(name): file for name, (file, _) in self._index.items()}
        return Metadata(tensors, storage_data=files)

    def set_up_storage_reader(
        self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any
    ) -> None:
        pass

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        by_file: dict[str, list[Any]] = {}
        for item in plan.items:
            by_file.setdefault(self._index[item.storage_index.fqn][0], []).append(item)
        for file, items in by_file.items():
            found = self._file(file)
            for item in items:
                name, target = item.storage_index.fqn, planner.resolve_tensor(item)
                if found[name].dtype != target.dtype:
                    raise StorageError(
                        f"{name} is {found[name].dtype} in {file}, and should be {target.dtype}"
                    )
                target.copy_(found[name])
                planner.commit_tensor(item, target)
        return _done(None)

    def _file(self, file: str) -> dict[str, torch.Tensor]:
        expected = {name: spec for name, (where, spec) in self._index.items() if where == file}
        found = tensorfile.mapped(self.folder / file, expected)
        tensorfile.check_sum(self.folder / file)
        return found

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return True


def read_index(folder: Path) -> dict[str, Any]:
    """Everything in the index. A file that something else wrote, or damaged, is refused."""
    path = folder / SHARDED_INDEX
    try:
        found = json.loads(path.read_bytes())
        if not isinstance(found, dict) or found.get("format") != 1:
            raise StorageError(f"{path} is not the index of a checkpoint")
        if found.get("checksum", "") not in ("", checksum(found)):  # version 0.1 wrote none
            raise StorageError("it was changed after it was written: its checksum differs")
    except (OSError, ValueError, RecursionError) as error:
        raise StorageError(f"cannot read {path}: {error}") from error
    return found


def read_tensors(folder: Path) -> dict[str, tuple[str, Spec]]:
    """Of every tensor, its file in the folder, its dtype and its shape."""
    found = {}
    tensors = read_index(folder).get("tensors")
    if not isinstance(tensors, dict):
        raise StorageError(f"the index in {folder} names no tensors")
    for name, entry in tensors.items():
        match entry:
            case [str(file), str(code), list(shape)] if (
                code in _BY_NAME and Path(file).name == file
            ):
                found[name] = file, (_BY_NAME[code], tuple(shape))
            case _:
                raise StorageError(f"the index in {folder} is damaged at {name!r}")
    return found


def _done(value: Any) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_result(value)
    return future
