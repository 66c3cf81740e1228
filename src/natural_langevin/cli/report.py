"""``natural-langevin report``: an HTML page of results, of a run, or of any saved posterior."""

from __future__ import annotations

import os
import pkgutil
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import typer
from torch import Tensor, nn
from torch.distributions import Normal

from natural_langevin._internal.checked_json import read_json
from natural_langevin.cli.console import echo
from natural_langevin.cli.errors import one_line_errors
from natural_langevin.cli.outputs import refuse_inputs
from natural_langevin.cli.pages import load_results, write_posterior_report, write_report
from natural_langevin.data.errors import DataError
from natural_langevin.data.npz import read_npz
from natural_langevin.posterior import manifest
from natural_langevin.posterior.posterior import Posterior
from natural_langevin.tabular.outcome import Outcome
from natural_langevin.tabular.predictive import Predictive
from natural_langevin.tabular.quality import diagnosis, quality, trace
from natural_langevin.tabular.run import (
    FORMAT,
    RunFolderError,
    is_finished,
    is_run,
    load_run,
    read_quality,
)
from natural_langevin.tabular.sureness import sentences
from natural_langevin.tabular.target import Target


def report(
    source: Path = typer.Argument(
        metavar="SOURCE",
        help="Folder of train or Posterior.save, or a results.json of reproduce.",
    ),
    out: Path | None = typer.Option(
        None, metavar="FILE", help="HTML file to write [default: report.html beside it]."
    ),
    model: str | None = typer.Option(
        None, metavar="PLACE", help="Model of a saved posterior, as package.module:name."
    ),
    data: str | None = typer.Option(
        None, metavar="FILE", help="NPZ file of x and y to score a saved posterior on."
    ),
) -> None:
    """Draw a page: how good it is, how sure, whether its chains agree, and how it was made.

    A folder of Posterior.save holds no network: give --model, and --data for scores.

    Example:

        natural-langevin train digits --out runs/digits --steps 200 --resume
        natural-langevin report runs/digits --out page.html
    """
    with one_line_errors(
        remedy="Nothing was written: free space or change --out, and run it again"
    ):
        results = source / "results.json" if source.is_dir() else source
        if out is not None:
            refuse_inputs(out, "--out", source, data)
        if not source.exists():
            raise RunFolderError(
                f"there is no file or folder {source}: give a folder of train --out or "
                "Posterior.save, or a results.json of reproduce"
            )
        if is_run(source):
            if model is not None or data is not None:
                raise RunFolderError(
                    f"{source} is a run of train and knows its network: leave out --model and "
                    "--data; natural-langevin evaluate scores it on other rows"
                )
            page = out or source / "report.html"
            write_posterior_report(_run_page(source), page)
        elif (source / manifest.NAME).is_file():
            page = out or source / "report.html"
            write_posterior_report(_posterior_page(source, model, data), page)
        elif source.is_dir() and not results.exists():
            raise RunFolderError(
                f"{source} holds no run, no posterior and no results: give a folder of train --out "
                "or Posterior.save, or a results.json"
            )
        else:
            page = out or results.with_name("report.html")
            write_report(load_results(results), page)
    echo(str(page))


def _run_page(folder: Path) -> dict[str, Any]:
    run = load_run(folder)
    if not is_finished(folder):
        raise RunFolderError(
            f"the run in {folder} is not finished: run the same train command with --resume"
        )
    words, quality = run.to_json(), read_quality(folder)
    columns = {
        column["name"]: {
            "number": lambda c: f"mean {c['mean']:.4g}, scale {c['scale']:.4g}",
            "category": lambda c: f"{len(c['levels'])} levels",
            "date": lambda c: f"date, {c['format']}",
        }[column["kind"]](column)
        for column in words["features"]["columns"][:40]
    }
    noticed = {str(k): notice for k, notice in enumerate((*run.notices, *run.features.notices), 1)}
    data: dict[str, Any] = {
        "source": run.source,
        "target": run.target.name,
        "task": run.target.task,
    }
    data |= {
        "training rows": run.rows[0],
        "held-out rows": run.rows[1],
        "inputs": run.features.width,
    }
    return {
        "title": f"{run.target.name}, from {run.source}",
        "byline": f"{run.target.task} · {run.rows[0]:,} training rows · natural-langevin "
        f"{read_json(folder / 'run.json').get('version')}",
        "command": shlex.join(["natural-langevin", "report", str(folder)]),
        "quality": quality,
        "words": sentences(quality),
        "about": {"Data": data, "Settings": words["settings"], "Columns": columns}
        | ({"Notes on the data": noticed} if noticed else {}),
    }


def _posterior_page(folder: Path, model: str | None, data: str | None) -> dict[str, Any]:
    saved = manifest.read(folder)
    command = ["natural-langevin", "report", str(folder)]
    quality: dict[str, Any] = {"rows": 0}
    if model is not None:
        posterior = Posterior.load(folder, import_model(model))
        quality = quality_of(posterior, data)
        command += ["--model", model] + (["--data", data] if data else [])
    elif data is not None:
        raise RunFolderError("--data needs --model: the folder holds the weights, not the network")
    return {
        "title": f"Posterior in {folder.resolve().name}",
        "byline": f"saved by natural-langevin {saved.version}"
        + ("" if model else " · for losses and diagnosis give --model, for scores --data too"),
        "command": shlex.join(command),
        "quality": quality,
        "about": {
            "Configuration": saved.config,
            "Likelihood": {"": saved.likelihood},
        },
    }


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


def import_model(name: str) -> nn.Module:
    """``package.module:attribute``, a module or a function that makes one; also from here."""
    sys.path.insert(0, os.getcwd())
    try:
        found = pkgutil.resolve_name(name)
    except (ImportError, AttributeError, ValueError) as error:
        raise RunFolderError(
            f"--model {name}: {error}: give it as package.module:name, importable from here"
        ) from None
    finally:
        sys.path.remove(os.getcwd())
    made = callable(found) and not isinstance(found, nn.Module)
    model = found() if made else found
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
