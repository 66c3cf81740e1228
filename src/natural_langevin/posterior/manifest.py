"""The manifest: ``posterior.json``, what a saved posterior consists of, and its strict reading.

It is JSON in the narrow sense (no NaN), with a checksum over all of it. What comes out of ``read``
has the right types everywhere, and names no file outside its own folder.
Checked by hand: ``import natural_langevin`` needs torch, numpy and safetensors alone.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from natural_langevin._internal.checked_json import read_json, with_checksum, without_checksum
from natural_langevin._internal.tensorfile import DTYPES, Spec, StorageError
from natural_langevin._internal.version import __version__
from natural_langevin.posterior.calibration import check_number, check_widths

FORMAT = 2
NAME = "posterior.json"

_DTYPES = {str(dtype): dtype for dtype in DTYPES}
_FILES = re.compile(r"(samples|draws|posterior)-[0-9a-f]{16}\.safetensors")


@dataclass(frozen=True)
class File:
    """A file of tensors beside the manifest."""

    name: str
    sha256: str  # of the whole file
    tensors: dict[str, Spec]

    def to_json(self) -> dict[str, Any]:
        """The entry of this file in the manifest."""
        tensors = {k: [str(dtype), list(shape)] for k, (dtype, shape) in self.tensors.items()}
        return {"name": self.name, "sha256": self.sha256, "tensors": tensors}


@dataclass(frozen=True)
class Manifest:
    model: dict[str, Any]  # see fingerprints.describe_model
    likelihood: dict[str, Any]
    config: dict[str, Any]
    samples: File
    rest: File
    version: str = __version__

    def text(self) -> str:
        """The manifest as JSON; ValueError when the configuration holds a NaN."""
        files = {"samples": self.samples.to_json(), "rest": self.rest.to_json()}
        return json.dumps(with_checksum(vars(self) | files | {"format": FORMAT}), indent=1)


def is_ours(name: str) -> bool:
    """Whether a file has the kind of name that belongs to a saved posterior."""
    return _FILES.fullmatch(name) is not None


def read(folder: Path) -> Manifest:
    """The manifest of a folder; StorageError when it is missing or malformed in any way."""
    path = folder / NAME
    if not path.is_file():
        raise StorageError(f"{folder} holds no saved posterior: {NAME} is missing")
    try:
        fields = read_json(path)
    except (OSError, ValueError) as error:
        raise StorageError(f"cannot read {NAME}: {error}") from error
    if not isinstance(fields, dict) or fields.get("format") != FORMAT:
        kind = fields.get("format") if isinstance(fields, dict) else type(fields).__name__
        raise StorageError(
            f"{NAME} has format {kind!r:.40}, this version reads {FORMAT}: save it again with the "
            "version that wrote it, or update natural-langevin"
        )
    try:
        fields = without_checksum(fields)
    except (ValueError, RecursionError) as error:  # of a NaN, which is no JSON, too
        raise StorageError(f"{NAME}: {error}") from error
    model = _get(fields, "model", dict)
    for key, kind in (("text", str), ("torch", str), ("sampled", dict), ("fixed", dict)):
        _get(model, key, kind)
    config = _get(fields, "config", dict)
    try:
        check_number("sharpness", config.get("sharpness", 1.0))
        check_number("spread", config.get("spread", 1.0), most=1.0)
        if (weights := config.get("noise_widths")) is not None:
            check_widths(weights)
    except ValueError as error:
        raise StorageError(f"{NAME}: {error}") from error
    return Manifest(
        model=model,
        likelihood=_get(fields, "likelihood", dict),
        config=config,
        samples=_file(_get(fields, "samples", dict)),
        rest=_file(_get(fields, "rest", dict)),
        version=str(fields.get("version")),
    )


def _file(fields: dict[str, Any]) -> File:
    name, sha256 = _get(fields, "name", str), _get(fields, "sha256", str)
    if not is_ours(name):
        raise StorageError(f"{NAME} names a file that cannot belong to it: {name!r:.80}")
    tensors = {k: _spec(k, v) for k, v in _get(fields, "tensors", dict).items()}
    return File(name, sha256, tensors)


def _spec(name: str, value: Any) -> Spec:
    dtype, shape = value if isinstance(value, list) and len(value) == 2 else (None, None)
    ok = isinstance(shape, list) and all(type(size) is int and size >= 0 for size in shape)
    if not isinstance(dtype, str) or dtype not in _DTYPES or not ok:
        raise StorageError(f"{NAME}: {name!r:.80} has no dtype and shape, but {value!r:.80}")
    assert shape is not None
    return _DTYPES[dtype], tuple(shape)


def _get(fields: dict[str, Any], key: str, kind: type) -> Any:
    value = fields.get(key)
    if not isinstance(value, kind):
        raise StorageError(
            f"{NAME}: {key!r} should be a {kind.__name__} and is a {type(value).__name__}"
        )
    return value
