"""Reports of any saved posterior, with or without its model and data."""

from __future__ import annotations

import importlib
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Normal

from natural_langevin._internal.checked_json import read_json
from natural_langevin.data.errors import DataError
from natural_langevin.data.npz import read_npz
from natural_langevin.posterior.posterior import Posterior
from natural_langevin.tabular.outcome import Outcome
from natural_langevin.tabular.predictive import Predictive
from natural_langevin.tabular.quality import diagnosis, quality, trace
from natural_langevin.tabular.run import FORMAT, RunFolderError
from natural_langevin.tabular.target import Target


@dataclass(frozen=True)
class OnePosterior:
    """A posterior of any network, as something that can be scored."""

    best: Posterior

    def inputs(self, x: Tensor) -> Tensor:
        """What the network is given: x itself."""
        return x

    def uncertainty(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Mean prediction and epistemic uncertainty of every row."""
        p = self.best.predict(x, keep_samples=False)
        return p.mean.double().cpu(), p.epistemic.double().cpu()

    def predictive(self, x: Tensor) -> Predictive:
        """The predictive distribution of a regression, in the target's units."""
        means, sigma = self.best.predict(x).samples, self.best.sigma
        assert means is not None
        assert sigma is not None
        noise = sigma[self.best.healthy].repeat_interleave(self.best.draws).double().cpu()
        law = Normal(means.double().cpu(), noise.reshape(-1, 1, 1), validate_args=False)
        shares = torch.full((len(means),), 1 / len(means), dtype=torch.float64)
        return Predictive(Outcome("regression", "constant"), law, shares, flat=True)


def is_posterior(folder: Path) -> bool:
    """Whether a folder holds a saved ``Posterior``."""
    return (folder / "posterior.json").is_file()


def read_manifest(folder: Path) -> dict[str, Any]:
    """The JSON beside the samples: configuration, likelihood and version."""
    path = folder / "posterior.json"
    try:
        manifest = read_json(path)
    except (OSError, ValueError) as error:
        raise RunFolderError(f"cannot read {path}: {error}: save the posterior again") from None
    if not isinstance(manifest, dict) or not isinstance(manifest.get("config"), dict):
        raise RunFolderError(f"{path} is damaged: save the posterior again")
    return manifest


def import_model(name: str) -> nn.Module:
    """``package.module:attribute``, a module or a function that makes one; also from here."""
    module, _, attribute = name.partition(":")
    sys.path.insert(0, os.getcwd())
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise RunFolderError(
            f"--model {name}: {error}: give it as package.module:name, importable from here"
        ) from None
    finally:
        sys.path.remove(os.getcwd())
    model = found if isinstance(found, nn.Module) else found()
    if not isinstance(model, nn.Module):
        raise RunFolderError(f"--model {name} is a {type(model).__name__}, not a torch.nn.Module")
    return model


def quality_of(posterior: Posterior, data: str | None) -> dict[str, Any]:
    """As for a run, on the arrays x (in the model's own shape) and y of an NPZ file."""
    if data is None:
        return {"format": FORMAT, "rows": 0, "trace": trace(posterior), "diagnosis": None}
    arrays = {name: torch.from_numpy(_plain(a)) for name, a in read_npz(data, ("x", "y")).items()}
    x, y = arrays["x"], arrays["y"]
    dtype = next(iter(posterior.last.values())).dtype
    x = x.to(dtype) if x.is_floating_point() else x
    outputs = posterior.predict(x[:1], keep_samples=False).mean
    likelihood, target = posterior.likelihood, None
    if likelihood.link == "softmax" and outputs.ndim == 2 and y.ndim == 1:
        target, y = Target("y", tuple(map(str, range(outputs.shape[1]))), ()), y.long()
    # Gaussian noise, of one size: what ``OnePosterior.predictive`` says of numbers.
    gaussian = likelihood.has_units and not likelihood.heavy_tails
    numbers = gaussian and likelihood.outputs_per_target == 1
    if numbers and outputs.numel() == 1 and y.numel() == len(y) and outputs.ndim == 2:
        target, y = Target("y", task="regression"), y.to(dtype).reshape(-1, 1)
    if target is None:  # no scores for other likelihoods; their chains can be compared all the same
        verdict = diagnosis(posterior, x[:40])
        return {"format": FORMAT, "rows": 0, "trace": trace(posterior), "diagnosis": verdict}
    label = os.path.basename(data)
    return quality(OnePosterior(posterior), target, _batches(x, y), label=label)


def _plain(array: Any) -> Any:
    if array.dtype.kind not in "biuf" or len(array.shape) == 0 or len(array) == 0:
        raise DataError(f"x and y must hold numbers, one row each, got {array.dtype} {array.shape}")
    return array.astype(array.dtype.newbyteorder("="), order="C")


def _batches(x: Tensor, y: Tensor) -> list[tuple[Tensor, Tensor]]:
    if len(x) != len(y):
        raise DataError(f"x and y must have the same length, got {len(x)} and {len(y)}")
    return list(zip(x.split(1000), y.split(1000), strict=True))
