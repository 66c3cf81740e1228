"""Fingerprints: how a model, a setting or data are recognised later, in another process."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor, nn

from natural_langevin._internal.tensorfile import StorageError

#: Numbers of a tensor up to which it is printed, and of those that stand for a larger one.
FEW, SOME = 8, 1000


def fingerprint(tensors: Mapping[str, Tensor], text: str = "") -> str:
    """SHA-256 of named tensors (dtype, shape and every byte) and a text."""
    digest = hashlib.sha256(text.encode())
    for name, tensor in tensors.items():
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        digest.update(flat.view(torch.uint8).numpy().data)
    return digest.hexdigest()


def stable_repr(value: Any) -> str:
    """A setting as text that is the same in every process: no addresses of functions, and of a
    tensor of many numbers, which take long to print, its shape and a digest of some."""
    own = {f.name: getattr(value, f.name) for f in fields(value)} if _is_instance(value) else {}
    if any(isinstance(v, Tensor) for v in own.values()):
        text = ", ".join(f"{k}={stable_repr(v)}" for k, v in own.items())
        return f"{type(value).__name__}({text})"
    if isinstance(value, Tensor) and value.numel() > FEW:
        some = value.flatten()[:: max(1, value.numel() // SOME)]
        return f"tensor({'x'.join(map(str, value.shape))}, {fingerprint({'': some})[:8]})"
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))


def _is_instance(value: Any) -> bool:
    return is_dataclass(value) and not isinstance(value, type)


def model_fingerprint(model: nn.Module) -> str:
    """Of the architecture, as far as its text shows it, and of every parameter and buffer."""
    state = model.state_dict()
    tensors = {k: v for k, v in state.items() if isinstance(v, Tensor)}
    others = {k: v for k, v in state.items() if not isinstance(v, Tensor)}
    return fingerprint(tensors, text=stable_repr(model) + stable_repr(others))


def exact_settings(
    model: nn.Module, rates: Tensor, prior: Mapping[str, Any], mode: str
) -> dict[str, str]:
    """What tells two runs apart beyond their settings in words, which round and leave out.

    ``rates``: of all steps and chains, on the run's device; ``prior``: by parameter."""
    values = {
        f"{n}.{k}": torch.as_tensor(v)
        for n, p in prior.items()
        for k, v in p.chain_values().items()
    }
    return {
        "model": model_fingerprint(model),
        "rates": fingerprint({"": rates}),
        "prior_values": fingerprint(values),
        "mode": mode,  # compiled code rounds differently
        "device": rates.device.type,
    }


def describe_model(model: nn.Module) -> dict[str, Any]:
    """What a saved posterior remembers of its model: nothing of the trainable values.

    ``text`` is the printed architecture, ``sampled`` the trainable parameters' dtypes and shapes,
    and ``fixed`` a SHA-256 of every frozen parameter and every buffer of its ``state_dict``."""
    sampled = {n: p for n, p in model.named_parameters() if p.requires_grad}
    state = model.state_dict(keep_vars=True)  # as variables, which know whether they are trained
    fixed = {n: v for n, v in state.items() if isinstance(v, Tensor) and not v.requires_grad}
    return {
        "text": stable_repr(model),
        "torch": torch.__version__,
        "sampled": {n: [str(p.dtype), list(p.shape)] for n, p in sampled.items()},
        "fixed": {n: fingerprint({"": p}) for n, p in fixed.items()},
    }


def check_model(saved: dict[str, Any], model: nn.Module) -> None:
    """Refuses a model that is not the one described, and says where they differ."""
    here = describe_model(model)
    for what, kind in (("sampled", "parameters"), ("fixed", "buffers or frozen parameters")):
        there, ours = saved[what], here[what]
        if set(there) != set(ours):
            missing, extra = sorted(set(there) - set(ours)), sorted(set(ours) - set(there))
            raise StorageError(
                f"the posterior and the model have different {kind}: the model lacks "
                f"{missing[:4]} and also has {extra[:4]}"
            )
    for name, ours in here["sampled"].items():
        if saved["sampled"][name] != ours:
            raise StorageError(
                f"parameter {name!r} is {_plain(saved['sampled'][name])} in the posterior and "
                f"{_plain(ours)} in the model"
            )
    for name, ours in here["fixed"].items():
        if saved["fixed"][name] != ours:
            raise StorageError(
                f"{name!r} differs from its value in the model that was sampled. Frozen "
                "parameters and buffers are not saved with a posterior: give the model with the "
                "ones it was sampled with"
            )
    _check_text(saved, here)


def _check_text(saved: dict[str, Any], here: dict[str, Any]) -> None:
    """The architecture, as printed: tells a Tanh from a ReLU."""
    if saved["text"] == here["text"]:
        return
    lines = zip_longest(saved["text"].splitlines(), here["text"].splitlines(), fillvalue="")
    there, ours = next(((a, b) for a, b in lines if a != b), (saved["text"], here["text"]))
    doubt = ""
    if saved["torch"] != here["torch"]:
        doubt = (
            f". It was saved with torch {saved['torch']!s:.40} and this is {here['torch']}: if "
            "only the printed form of the model differs, load and save it again with that "
            "version"
        )
    raise StorageError(
        f"the posterior belongs to another architecture: {there.strip()!r:.80} there, "
        f"{ours.strip()!r:.80} in the model{doubt}"
    )


def _plain(of: Any) -> str:
    """[dtype, shape] as a reader wants it, or whatever else a damaged file says."""
    match of:
        case [str(dtype), list(shape)]:
            return f"{dtype} {tuple(shape)}"
    return f"{of!r:.80}"
