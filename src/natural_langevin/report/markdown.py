"""The results' table as Markdown, for pages that are read on a code host."""

from __future__ import annotations

from typing import Any

HEADER = (
    "| method | train NLL | train acc. % | test NLL | test acc. % | Brier | ECE | "
    "paper: test NLL | paper: acc. |",
    "|---|---|---|---|---|---|---|---|---|",
)


def markdown_table(results: dict[str, Any]) -> str:
    """One line per row of the results; test columns as mean ± standard deviation over seeds."""
    return "\n".join([*HEADER, *(_line(row) for row in results["rows"])])


def _line(row: dict[str, Any]) -> str:
    train, test, paper = row["train"], row["test"], row["paper"]
    cells = [
        row["label"],
        f"{train['nll']['mean']:.4f}",
        f"{train['accuracy']['mean']:.2f}",
        _spread(test["nll"], 4),
        _spread(test["accuracy"], 2),
        f"{test['brier']['mean']:.4f}",
        f"{test['ece']['mean']:.4f}",
        f"{paper['test']['nll']:.4f}" if paper else "",
        f"{paper['test']['accuracy']:.2f}" if paper else "",
    ]
    return f"| {' | '.join(cells)} |"


def _spread(cell: dict[str, Any], digits: int) -> str:
    return f"{cell['mean']:.{digits}f} ± {cell['std']:.{digits}f}"
