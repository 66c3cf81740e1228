"""``natural-langevin report``: an HTML page of results, of a run, or of any saved posterior."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import typer

from natural_langevin.cli.console import echo
from natural_langevin.cli.errors import one_line_errors
from natural_langevin.cli.outputs import refuse_inputs
from natural_langevin.cli.pages import load_results, write_posterior_report, write_report
from natural_langevin.posterior.posterior import Posterior
from natural_langevin.tabular import plain
from natural_langevin.tabular.run import (
    RunFolderError,
    is_finished,
    is_run,
    load_run,
    read_json,
    read_quality,
)
from natural_langevin.tabular.sureness import sentences


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
        elif plain.is_posterior(source):
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
    manifest = plain.read_manifest(folder)
    command = ["natural-langevin", "report", str(folder)]
    quality: dict[str, Any] = {"rows": 0}
    if model is not None:
        posterior = Posterior.load(folder, plain.import_model(model))
        quality = plain.quality_of(posterior, data)
        command += ["--model", model] + (["--data", data] if data else [])
    elif data is not None:
        raise RunFolderError("--data needs --model: the folder holds the weights, not the network")
    return {
        "title": f"Posterior in {folder.resolve().name}",
        "byline": f"saved by natural-langevin {manifest.get('version')}"
        + ("" if model else " · for losses and diagnosis give --model, for scores --data too"),
        "command": shlex.join(command),
        "quality": quality,
        "about": {
            "Configuration": manifest["config"],
            "Likelihood": {"": manifest.get("likelihood")},
        },
    }
