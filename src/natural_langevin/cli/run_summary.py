"""Terminal output of train and evaluate: the data, the scores, and what to do next."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table

from natural_langevin.tabular.columns import Category, Date, Number
from natural_langevin.tabular.fit import Prepared
from natural_langevin.tabular.run import Run
from natural_langevin.tabular.settings import AUTO
from natural_langevin.tabular.sureness import figure, usable

NAMES = {
    "accuracy": "accuracy",
    "nll": "negative log-likelihood",
    "brier": "Brier score",
    "ece": "calibration error",
    "auc": "area under the ROC curve",
    "rmse": "root-mean-square error",
    "coverage": "coverage of 90 % intervals",
}
MEANING = {
    "accuracy": "how often the most probable class is right",
    "nll": "nats per row; smaller is better, punishes false certainty",
    "brier": "0 to 2; smaller is better",
    "ece": "mean gap between confidence and accuracy; 0 is perfect",
    "auc": "how often a row of the class scores above one that is not; 1 is perfect",
    "rmse": "in the target's own units",
    "coverage": "how often the truth is inside; 90 % is perfect",
}


#: The confusion matrix is shown for at most this many classes.
MOST_CONFUSED = 8
#: Columns that are named.
MOST_IMPORTANT = 8
#: Lines of what was noticed.
MOST_NOTICES = 25
#: A narrower terminal gets the scores without what they mean.
WIDE = 96


def data(prepared: Prepared, console: Console) -> None:
    """What the data are, and what will be done with them."""
    run = prepared.run
    lines = Table.grid(padding=(0, 2))
    lines.add_column(style="bold")
    lines.add_column()
    for name, words in (
        ("Data", _rows(run)),
        ("Task", f"{run.target.task}, because {prepared.reason}{_classes(run)}"),
        ("Inputs", _inputs(run)),
        ("Network", _network(run)),
        ("Sampler", _sampler(run)),
    ):
        lines.add_row(name, escape(words))
    console.print(lines, highlight=False)
    notices = [*run.notices, *run.features.notices]
    if notices:
        console.print("\n[bold]Notes on the data[/] (kept in run.json)", highlight=False)
        for notice in notices[:MOST_NOTICES]:
            console.print(Padding(escape(notice), (0, 0, 0, 2)), highlight=False)
        if len(notices) > MOST_NOTICES:
            console.print(f"  ... and {len(notices) - MOST_NOTICES} more, in run.json")
        console.print()


def _rows(run: Run) -> str:
    trained, held = run.rows
    kept = f", {held:,} held out to test it (chosen by seed {run.settings.seed})"
    if not run.hold_out:
        kept = f", {held:,} separate rows to test it" if held else ", none held out"
    return f"{run.source}: {trained:,} rows to learn {run.target.name!r} from{kept}"


def title(run: Run) -> str:
    """The heading of the picture."""
    return f"{run.target.name}, from {run.source}: how sure is it?"


def _classes(run: Run) -> str:
    shares = [
        f"{name} {100 * share:.3g} %"
        for name, share in zip(run.target.classes, run.target.shares, strict=True)
    ]
    if not shares:
        return ""
    more = f", ... ({len(shares)} classes)" if len(shares) > 10 else ""
    return f": {', '.join(shares[:10])}{more}"


def _inputs(run: Run) -> str:
    numbers = [p for p in run.features.parts if isinstance(p, Number)]
    dates = [p.name for p in run.features.parts if isinstance(p, Date)]
    categories = [p for p in run.features.parts if isinstance(p, Category)]
    standardised = any((p.mean, p.scale) != (0.0, 1.0) for p in numbers)
    parts = []
    if numbers:
        how = "standardised" if standardised else "as they are"
        parts.append(f"{len(numbers)} numeric column{'s' * (len(numbers) > 1)}, {how}")
    if dates:
        parts.append(f"dates: {', '.join(dates[:6])}{', ...' * (len(dates) > 6)}")
    if categories:
        levels = ", ".join(f"{p.name} ({len(p.levels)} levels)" for p in categories[:6])
        parts.append(f"one-hot encoded: {levels}{', ...' * (len(categories) > 6)}")
    return "; ".join(parts)


def _network(run: Run) -> str:
    sizes = "-".join(map(str, [run.features.width, *run.settings.layers]))
    function = run.settings.activation
    if function == AUTO:  # held-out rows choose, for numbers and counts
        function = "relu" if run.target.classes else "relu or tanh"
    return f"{sizes} units, {function}"


def _sampler(run: Run) -> str:
    s = run.settings
    length = "as many steps as needed" if s.given_steps is None else f"{s.steps:,} steps"
    compared = "; views of the table are compared on held-out rows" if s.folds else ""
    return f"natural Langevin dynamics, {s.chains} chains of {length}{compared}"


def choice(quality: Mapping[str, Any], console: Console) -> None:
    """The view of largest weight; the others are in the report and quality.json."""
    chosen = [one for one in quality.get("choice", ()) if one["weight"]]
    if not chosen:
        return
    best = max(chosen, key=lambda one: float(one["weight"]))
    more = f", mixed with {len(chosen) - 1} more (see the report)" if chosen[1:] else ""
    console.print(f"\n[bold]Chosen[/]  {escape(best['view'])}{more}", highlight=False)


def importance(quality: Mapping[str, Any], console: Console) -> None:
    """The columns that predictions are worse without, on held-out rows."""
    found = [one for one in quality.get("importance", ()) if one["lost"] > 2 * one["error"]]
    if not found:
        return
    console.print(
        "\n[bold]Column importance[/]  nats per held-out row lost when the column is shuffled",
        highlight=False,
    )
    for one in found[:MOST_IMPORTANT]:
        line = f"  {one['column']}: {one['lost']:.2g} ± {one['error']:.1g}"
        console.print(escape(line if not console.options.ascii_only else line.replace("±", "+/-")),
                      highlight=False)  # fmt: skip


def scores(quality: Mapping[str, Any], console: Console) -> None:
    """The scores beside those of a guess that ignores the inputs, and the diagnosis in words."""
    if quality["rows"]:
        rows = f"{quality['rows']:,} rows: {escape(quality['data'])}"
        console.print(f"\n[bold]How good is it?[/]  {rows}", highlight=False)
        wide = console.width >= WIDE
        table = Table(box=None, padding=(0, 2, 0, 0))
        for heading in ("", "it", "a blind guess"):
            table.add_column(heading, justify="right" if heading else "left", no_wrap=True)
        table.add_column("", style="dim")
        for key, value in quality["scores"].items():
            plain = quality["baseline"].get(key)
            shown = "" if plain is None else _number(key, plain)
            cells = [f"  {NAMES[key]}", f"[bold]{_number(key, value)}[/]", shown]
            table.add_row(*cells, MEANING[key] if wide else "")
        console.print(table)
        if quality.get("refit"):
            console.print(
                "  Scored before the final fit; the saved model has learned from all "
                f"{quality['refit']:,}.", highlight=False,
            )  # fmt: skip
        confusion(quality, console)
    else:
        console.print("\nNo rows were held out, so there is nothing to score it on.")
    verdict = quality["diagnosis"]
    if verdict:
        console.print("\n[bold]Can it be trusted?[/]", highlight=False)
        first = usable(quality)
        said = [verdict["summary"], *(verdict["verdicts"] or _all_well(verdict))]
        for sentence in [first, *said] if first else said:
            console.print(Padding(escape(sentence), (0, 0, 0, 2)), highlight=False)


def confusion(quality: Mapping[str, Any], console: Console) -> None:
    """Rows of every class by what they were taken for, of few classes."""
    found = quality.get("confusion")
    if not found or len(found["classes"]) > MOST_CONFUSED:
        return
    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column("  in truth \\ predicted", no_wrap=True)
    for name in found["classes"]:
        table.add_column(escape(name), justify="right")
    for k, (name, counts) in enumerate(zip(found["classes"], found["counts"], strict=True)):
        cells = [f"[bold]{n:,}[/]" if j == k else f"{n:,}" for j, n in enumerate(counts)]
        table.add_row(f"  {escape(name)}", *cells)
    console.print()
    console.print(table)


def _all_well(verdict: Mapping[str, Any]) -> list[str]:
    diagnosed = not verdict["summary"].startswith("Not diagnosed")
    return ["Nothing suspicious was found."] if diagnosed else []


def _number(key: str, value: float | None) -> str:
    if value is None:
        return "not finite"
    if key in ("accuracy", "coverage"):
        return f"{100 * value:.1f} %"
    return figure(value) if key == "rmse" else f"{value:.4f}"


def next_commands(folder: Path, console: Console) -> None:
    """Print the commands that a reader of this run may want next."""
    where = shlex.quote(str(folder))
    console.print("\n[bold]Next[/]")
    for command in (
        f"natural-langevin predict {where} NEW.csv --out predictions.csv",
        f"natural-langevin evaluate {where} OTHER.csv",
        f"natural-langevin report {where}",
    ):
        console.print(f"  {escape(command)}", soft_wrap=True, highlight=False)
