"""Saved posteriors: safetensors for the numbers, JSON for the words. Never pickle.

A folder holds ``posterior.safetensors`` (samples, means, last iterates, trace) and
``posterior.json`` (format, version, parameter shapes, likelihood, configuration). The JSON is
written last, so a folder with it is complete. Anything unexpected in either is refused.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save as serialise
from torch import Tensor

from natural_langevin import likelihoods
from natural_langevin._version import __version__
from natural_langevin.atomic import staged

FORMAT = 1
LIKELIHOODS: dict[str, type[likelihoods.Likelihood]] = {
    "Categorical": likelihoods.Categorical,
    "Bernoulli": likelihoods.Bernoulli,
    "Gaussian": likelihoods.Gaussian,
}


class StorageError(ValueError):
    """A saved posterior that cannot be read, or does not fit the model."""


def write(
    folder: Path,
    *,
    groups: dict[str, dict[str, Tensor]],
    likelihood: likelihoods.Likelihood,
    config: dict[str, Any],
) -> None:
    """``groups`` are dicts of tensors ("samples", "mean", ...), stored as "group/name"."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {
        f"{group}/{name}": value.detach().cpu().contiguous()
        for group, values in groups.items()
        for name, value in values.items()
    }
    words = {
        "format": FORMAT,
        "version": __version__,
        "likelihood": _likelihood_words(likelihood),
        "tensors": {k: [str(v.dtype), list(v.shape)] for k, v in tensors.items()},
        "config": config,
    }
    # Without its words a folder is no posterior: no moment pairs old words with new numbers.
    (folder / "posterior.json").unlink(missing_ok=True)
    with staged(folder / "posterior.safetensors") as handle:
        handle.write(serialise(tensors))
    with staged(folder / "posterior.json") as handle:
        handle.write(json.dumps(words, indent=1).encode())


def read(
    folder: Path, parameters: dict[str, Tensor], likelihood: likelihoods.Likelihood | None
) -> tuple[dict[str, dict[str, Tensor]], likelihoods.Likelihood, dict[str, Any]]:
    """Groups, likelihood and configuration; ``parameters`` are the model's trainable ones."""
    words = _read_words(folder / "posterior.json")
    path = folder / "posterior.safetensors"
    groups: dict[str, dict[str, Tensor]] = {}
    try:
        with safe_open(path, framework="pt") as file:
            if set(file.keys()) != set(words["tensors"]):
                raise StorageError(f"{path.name} does not hold the tensors posterior.json names")
            for key, (dtype, shape) in words["tensors"].items():
                value = file.get_tensor(key)
                if str(value.dtype) != dtype or list(value.shape) != shape:
                    raise StorageError(
                        f"{key} is {value.dtype} {list(value.shape)}, posterior.json says "
                        f"{dtype} {shape}"
                    )
                group, _, name = key.partition("/")
                groups.setdefault(group, {})[name] = value
    except (SafetensorError, OSError) as error:
        raise StorageError(f"cannot read {path.name}: {error}") from error
    _check_fits(groups, parameters)
    return groups, likelihood or _likelihood(words["likelihood"]), words["config"]


def _read_words(path: Path) -> dict[str, Any]:
    try:
        words = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise StorageError(f"cannot read {path.name}: {error}") from error
    if not isinstance(words, dict) or words.get("format") != FORMAT:
        found = words.get("format") if isinstance(words, dict) else type(words).__name__
        raise StorageError(
            f"{path.name} has format {found!r}, this version reads {FORMAT}: save it again with "
            "the version that wrote it, or update natural-langevin"
        )
    tensors = words.get("tensors")
    ok = isinstance(tensors, dict) and all(
        isinstance(v, list) and len(v) == 2 and isinstance(v[0], str) and isinstance(v[1], list)
        for v in tensors.values()
    )
    if not ok or not isinstance(words.get("config"), dict):
        raise StorageError(f"{path.name} is incomplete: save the posterior again")
    return words


def _check_fits(groups: dict[str, dict[str, Tensor]], parameters: dict[str, Tensor]) -> None:
    """The samples must be those of this model: same names, shapes and dtypes."""
    if set(groups) - {"samples", "mean", "last", "learned", "run"}:
        raise StorageError(f"unexpected groups of tensors: {sorted(groups)}")
    run = groups.get("run", {})
    if set(run) != {"diverged", "trace"} or run["diverged"].ndim != 1:
        raise StorageError("the record of the run (divergence, trace) is missing or malformed")
    chains = len(run["diverged"])
    for group in ("samples", "mean", "last"):
        values = groups.get(group, {})
        if set(values) != set(parameters):
            odd = sorted(set(values) ^ set(parameters))[:4]
            raise StorageError(f"{group} and the model have different parameters: {odd}")
        for name, value in values.items():
            p, lead = parameters[name], 2 if group == "samples" else 1
            fits = value.shape[lead:] == p.shape and value.shape[:1] == (chains,)
            if value.ndim != p.ndim + lead or not fits or value.dtype != p.dtype:
                raise StorageError(
                    f"{group} of {name!r} are {value.dtype} {tuple(value.shape)}, which does not "
                    f"fit a parameter {p.dtype} {tuple(p.shape)} of {chains} chains"
                )


def _likelihood_words(likelihood: likelihoods.Likelihood) -> dict[str, Any]:
    name = type(likelihood).__name__
    if name not in LIKELIHOODS:
        return {"name": name}  # a LogLoss holds functions: they must be given again when loading
    return {"name": name, "arguments": asdict(likelihood)}  # type: ignore[call-overload]


def _likelihood(words: Any) -> likelihoods.Likelihood:
    name = words.get("name") if isinstance(words, dict) else None
    if name not in LIKELIHOODS:
        raise StorageError(
            f"the likelihood {name!r} cannot be restored from a file: give it again, "
            "Posterior.load(folder, model, likelihood=...)"
        )
    try:
        return LIKELIHOODS[name](**words.get("arguments", {}))
    except (TypeError, ValueError) as error:
        raise StorageError(f"the saved likelihood {name} is malformed: {error}") from error
