"""Saved posteriors: safetensors for the numbers, JSON for the rest. Never pickle.

A folder holds ``posterior.json`` (see ``manifest``: versions, the model's fingerprint, likelihood,
configuration, and which files belong to it), ``samples-*.safetensors`` (or the ``draws-*`` file
that a run wrote itself) and ``posterior-*.safetensors`` (means, last iterates, trace). Every save
writes new files and then replaces the JSON: at every moment the folder holds the old posterior or
the new one, whole. Anything unexpected in any of the files is refused with ``StorageError``.
"""

from __future__ import annotations

import contextlib
import hashlib
import secrets
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from natural_langevin import likelihoods
from natural_langevin._internal import capacity, shared_file, tensorfile
from natural_langevin._internal.atomic import remove_leftovers, staged
from natural_langevin._internal.chains import Params
from natural_langevin._internal.fingerprints import check_model, describe_model
from natural_langevin._internal.folder_lock import FolderLock
from natural_langevin._internal.processes import Processes
from natural_langevin._internal.shared_file import Part, all_or_none, chain_part
from natural_langevin._internal.tensorfile import Spec, StorageError, WriteError
from natural_langevin.posterior import manifest
from natural_langevin.posterior.manifest import File, Manifest
from natural_langevin.posterior.networks import OnDisk, chunks
from natural_langevin.priors import PositivePrior
from natural_langevin.statistics.vectorised import MODEL_LOCK

__all__ = ["StorageError", "WriteError", "forget", "read", "write"]

Groups = dict[str, Params]


def write(
    folder: Path,
    *,
    model: nn.Module,
    samples: Mapping[str, Tensor],
    groups: Groups,
    likelihood: likelihoods.Likelihood,
    config: dict[str, Any],
    processes: Processes,
) -> None:
    """Writes a posterior into a folder, in the place of any that it holds. ``groups`` are dicts of
    tensors ("mean", "last", ...), stored as "group/name"; ``samples`` and the groups ``BY_CHAIN``
    are those of this process's chains."""
    rest = {
        f"{group}/{name}": chain_part(v, processes) if group in BY_CHAIN else Part(v)
        for group, values in groups.items()
        for name, v in values.items()
    }
    token = processes.exchange("saving the posterior", secrets.token_hex(8))[0]
    with _write_errors(folder), _removed_on_failure(token, folder), contextlib.ExitStack() as held:

        def lock() -> None:
            if processes.first:
                folder.mkdir(parents=True, exist_ok=True)
                held.enter_context(FolderLock(folder, "saving a posterior", wait=PATIENCE))

        all_or_none(processes, "making a folder for the posterior", lock)
        samples_path = _write_samples(folder, samples, token, processes)
        rest_path = folder / f"posterior-{token}.safetensors"
        shared_file.write(rest_path, rest, {}, processes)

        def publish() -> None:
            """Makes these two files the posterior of the folder."""
            if not processes.first:
                return
            with MODEL_LOCK:  # another thread may be predicting
                description = describe_model(model)
            whole = {k: chain_part(v, processes).whole for k, v in samples.items()}
            saved = Manifest(
                model=description,
                likelihood=_describe_likelihood(likelihood),
                config=config,
                samples=File(samples_path.name, _digest(samples_path), whole),
                rest=File(
                    rest_path.name, _digest(rest_path), {k: p.whole for k, p in rest.items()}
                ),
            )
            with staged(folder / manifest.NAME) as handle:
                handle.write(saved.text().encode())
            _remove_others(folder, {samples_path.name, rest_path.name})

        all_or_none(processes, "naming the posterior", publish)


#: Groups of tensors of which every process has the rows of its own chains.
BY_CHAIN = ("mean", "last")
#: Seconds that a save waits for another one to the same folder, and how often a reader whose files
#: were replaced under its eyes begins again.
PATIENCE, RETRIES = 10.0, 20
#: Numbers of the samples that are looked at at a time.
NUMBERS_AT_ONCE = 1 << 20
#: Likelihoods that a file can hold: those of numbers, and what may stand around one.
LIKELIHOODS = likelihoods.REGISTRY | {"Scaled": likelihoods.Scaled}
#: Priors of a likelihood's own parameter.
POSITIVE_PRIORS = {kind.__name__: kind for kind in PositivePrior.__subclasses__()}


def _write_errors(folder: Path) -> contextlib.AbstractContextManager[None]:
    """Around writing: an error of the disk becomes one that says what the folder holds now."""

    def state() -> str:
        there = (folder / manifest.NAME).exists()
        return "What was saved there before is intact" if there else "Nothing was saved there"

    return tensorfile.writing(f"the posterior to {folder}", state, remedy="Or use another folder")


@contextlib.contextmanager
def _removed_on_failure(token: str, folder: Path) -> Iterator[None]:
    """Around writing: removes the new files where it fails, so that a full disk gets no fuller."""
    try:
        yield
    except BaseException:
        for path in folder.glob(f"*-{token}.safetensors"):
            path.unlink(missing_ok=True)
        raise


def _write_samples(
    folder: Path, samples: Mapping[str, Tensor], token: str, processes: Processes
) -> Path:
    """Samples in a file of this folder stay there; those in another's are copied as a file."""
    path = folder / f"samples-{token}.safetensors"
    if processes.world > 1 or not isinstance(samples, OnDisk) or samples.replaced:
        parts = {name: chain_part(samples[name], processes) for name in samples}
        shared_file.write(path, parts, {}, processes)
        return path
    if samples.path.parent.resolve() == folder.resolve():
        return samples.path
    with staged(path) as handle, samples.path.open("rb") as source:
        shutil.copyfileobj(source, handle, tensorfile.PIECE)
    return path


def _digest(path: Path) -> str:
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def _remove_others(folder: Path, belonging: set[str]) -> None:
    """What an older or a killed save left. The draws of a run are never removed here."""
    with contextlib.suppress(OSError):  # the new posterior is there: what is left does no harm
        for pattern in ("samples-*.safetensors", "posterior-*.safetensors"):
            for path in folder.glob(pattern):
                if path.name not in belonging and manifest.is_ours(path.name):
                    path.unlink(missing_ok=True)
        remove_leftovers(folder)


def forget(draws: Path) -> None:
    """Removes a posterior that was saved with these draws, which are about to be drawn again."""
    try:
        saved = manifest.read(draws.parent)
    except StorageError:
        return
    if saved.samples.name == draws.name:
        for name in (manifest.NAME, saved.rest.name):
            (draws.parent / name).unlink(missing_ok=True)


def read(
    folder: Path,
    model: nn.Module,
    likelihood: likelihoods.Likelihood | None,
    *,
    memory_map: bool,
) -> tuple[Params, Groups, likelihoods.Likelihood, dict[str, Any]]:
    """Samples, other groups, likelihood and configuration of a posterior of this model.

    Every file is compared with its checksum, and the weights of chains that did not diverge must be
    finite. With ``memory_map`` the samples are read through once for that, and stay on the disk."""
    for _ in range(RETRIES):
        saved = manifest.read(folder)
        try:
            return _read(folder, saved, model, likelihood, memory_map=memory_map)
        except StorageError:
            if manifest.read(folder) == saved:
                raise  # nobody saved another one there meanwhile
    return _read(folder, manifest.read(folder), model, likelihood, memory_map=memory_map)


def _read(
    folder: Path,
    saved: Manifest,
    model: nn.Module,
    likelihood: likelihoods.Likelihood | None,
    *,
    memory_map: bool,
) -> tuple[Params, Groups, likelihoods.Likelihood, dict[str, Any]]:
    found = _likelihood(saved.likelihood, likelihood)
    likelihoods.attach(model, found)
    check_model(saved.model, model)
    _check_shapes(saved, {n: p for n, p in model.named_parameters() if p.requires_grad})
    groups: Groups = {}
    for key, value in _read_file(folder, saved.rest).items():
        group, _, name = key.partition("/")
        groups.setdefault(group, {})[name] = value
    if memory_map:
        samples = OnDisk(folder / saved.samples.name, saved.samples.tensors)
        _check_digest(folder, saved.samples)
        _check_finite(samples, groups)
        return samples, groups, found, saved.config
    devices = {torch.device("cpu"), *(p.device for p in model.parameters())}
    size = sum(map(tensorfile.size_in_bytes, saved.samples.tensors.values()))
    there = min(map(capacity.in_memory, devices))
    if size > there:
        raise StorageError(
            f"the samples take {size / 2**30:.3g} GiB and the memory has {there / 2**30:.3g}: "
            "leave them on the disk, Posterior.load(..., memory_map=True)"
        )
    read = _read_file(folder, saved.samples)
    _check_finite(read, groups)
    return read, groups, found, saved.config


def _read_file(folder: Path, file: File) -> Params:
    tensors = tensorfile.mapped(folder / file.name, file.tensors)  # the sizes are right
    _check_digest(folder, file)
    return {name: value.clone() for name, value in tensors.items()}


def _check_digest(folder: Path, file: File) -> None:
    try:
        found = _digest(folder / file.name)
    except OSError as error:
        raise StorageError(f"cannot read {file.name}: {error}") from error
    if found != file.sha256:
        raise StorageError(f"{file.name} is damaged: its contents are not those that were saved")


def _check_finite(samples: Params, groups: Groups) -> None:
    """A chain that diverged lacks draws; any other must have numbers everywhere."""
    healthy = (groups["run"]["diverged"] < 0).nonzero().flatten().tolist()
    one = {"mean": groups["mean"], "last": groups["last"], "learned": groups.get("learned", {})}
    broken = {
        f"{group}/{name}"
        for group, values in one.items()
        for name, value in values.items()
        if not all(_is_finite(value[chain]) for chain in healthy)
    }
    size = max(1, NUMBERS_AT_ONCE // max(1, sum(v[0, :1].numel() for v in samples.values())))
    for some in chunks(samples, healthy, size) if healthy else ():
        broken |= {f"samples/{k}" for k, v in some.items() if not _is_finite(v)}
    if broken:
        raise StorageError(
            f"{sorted(broken)[0]} holds NaN or infinite values in chains that did not diverge: "
            "the files were not written by save, or the posterior was changed before it"
        )


def _is_finite(values: Tensor) -> bool:
    """Whether all are numbers, by the two ends of them: a mask would need their memory again."""
    return not values.numel() or bool(torch.stack(values.aminmax()).isfinite().all())


def _check_shapes(saved: Manifest, parameters: Params) -> None:
    """The tensors must be those of a posterior of these parameters, before any is read."""
    if not parameters:
        raise StorageError("the model has no trainable parameters, and a posterior is of those")
    rest, samples = dict(saved.rest.tensors), saved.samples.tensors
    chains, draws = 0, 0
    if len(rest.get("run/diverged", (None, ()))[1]) == 1:
        chains = rest["run/diverged"][1][0]
    first = next(iter(samples.values()), (torch.float32, ()))
    if len(first[1]) >= 2:
        draws = first[1][1]
    if chains < 1 or draws < 1:
        raise StorageError(f"{manifest.NAME} describes no chains, or no samples of them")
    expected: dict[str, Spec] = {}
    for name, p in parameters.items():
        if not first[0].is_floating_point:
            raise StorageError(f"samples cannot be {first[0]}")
        expected[f"samples/{name}"] = (first[0], (chains, draws, *p.shape))
        expected[f"mean/{name}"] = expected[f"last/{name}"] = (p.dtype, (chains, *p.shape))
    looks = next(iter(rest.get("run/trace", (None, (0,)))[1]), 0)
    expected["run/trace"] = (torch.float64, (looks, 1 + chains))
    expected["run/diverged"] = (torch.int64, (chains,))
    there = rest | {f"samples/{name}": value for name, value in samples.items()}
    learned = {k: v for k, v in there.items() if k.startswith("learned/")}
    for name, (_, shape) in learned.items():
        if shape[:1] != (chains,):
            raise StorageError(f"{name} is {shape}, which is not one value per chain ({chains})")
    trained = {f"trained/{k}": (p.dtype, tuple(p.shape)) for k, p in parameters.items()}
    expected |= {k: v for k, v in trained.items() if k in there}
    tensorfile.check_specs(Path(manifest.NAME), there, expected | learned)


def _describe_likelihood(likelihood: likelihoods.Likelihood) -> dict[str, Any]:
    name = type(likelihood).__name__
    if name not in LIKELIHOODS:
        return {"name": name}  # a LogLoss holds functions: they must be given again when loading
    arguments = asdict(likelihood)  # type: ignore[call-overload]
    for key in arguments.keys() & {"likelihood"}:  # another one inside
        arguments[key] = _describe_likelihood(getattr(likelihood, key))
    if (own := likelihood.own_parameter) is not None:
        arguments[own[0]] = {"prior": type(own[1]).__name__, "arguments": asdict(own[1])}
    return {"name": name, "arguments": arguments}


def _likelihood(
    fields: dict[str, Any], given: likelihoods.Likelihood | None
) -> likelihoods.Likelihood:
    name = fields.get("name")
    if given is not None:
        arguments = fields.get("arguments", {})
        inside = arguments.get("likelihood", {}) if name == "Scaled" else {}
        if inside and type(given).__name__ == inside.get("name"):  # what the user gave, scaled
            return LIKELIHOODS["Scaled"](**arguments | {"likelihood": given})
        if type(given).__name__ != name:
            raise StorageError(
                f"the posterior was sampled with the likelihood {name!r}, not with {given!r}"
            )
        return given
    if not isinstance(name, str) or name not in LIKELIHOODS:
        raise StorageError(
            f"the likelihood {name!r:.80} cannot be restored from a file: give it again, "
            "Posterior.load(folder, model, likelihood=...)"
        )
    try:
        arguments = dict(fields.get("arguments", {}))
        if "likelihood" in arguments:
            arguments["likelihood"] = _likelihood(dict(arguments["likelihood"]), None)
        for key, value in arguments.items():
            if isinstance(value, dict):
                arguments[key] = POSITIVE_PRIORS[value["prior"]](**value["arguments"])
        return LIKELIHOODS[name](**arguments)
    except StorageError:  # of the one inside, which says what to do
        raise
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise StorageError(f"the saved likelihood {name} is malformed: {error}") from error
