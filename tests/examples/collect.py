"""Gathers full-size runs of the examples: `python tests/examples/collect.py RUNS`.

RUNS holds one folder per example, as the commands in docs/examples.md write them. Their JSON files
go into results/examples.json with the machine and versions, their pictures to docs/examples, and
the table of docs/examples.md is written anew. Examples that RUNS lacks keep what they have.
"""

import json
import re
import shutil
import sys
from pathlib import Path

from natural_langevin.cli.experiments.origin import origin

ROOT = Path(__file__).parents[2]
RESULTS, PAGE = ROOT / "results" / "examples.json", ROOT / "docs" / "examples.md"
TABLE = re.compile(r"(?<=<!-- table:begin -->\n).*?(?=<!-- table:end -->)", re.DOTALL)


def table(runs: dict) -> str:
    lines = ["| script | accuracy | calibration | to compare |", "|---|---|---|---|"]
    for name, run in sorted(runs.items()):
        lines.append(f"| `{name}.py` | {' | '.join(cells(name, run))} |")
    return "\n".join(lines) + "\n"


def cells(name: str, run: dict) -> tuple[str, str, str]:
    """Accuracy, calibration and a comparison, in words."""
    scores = run["scores"]
    if name == "poisson_counts":
        return (
            f"NLL {scores['nll']:.3f}",
            f"inside 50 % and 90 % intervals: {scores['inside 50% intervals']:.1%}, "
            f"{scores['inside 90% intervals']:.1%}",
            f"NLL of the true rates {scores['nll of the true rates']:.3f}, "
            f"of a constant rate {scores['nll of a constant rate']:.3f}",
        )
    if name == "regression_1d":
        spread = ", ".join(f"{v:.3f} {k}" for k, v in run["epistemic standard deviation"].items())
        spread = spread.replace("|x| = 2", "x = ±2")  # a bar would end the table's cell
        return (
            f"RMSE {scores['rmse']:.3f}, NLL {scores['nll']:.3f}",
            f"inside 50 % and 90 % intervals: {scores['coverage']['0.5']:.1%}, "
            f"{scores['coverage']['0.9']:.1%}",
            f"epistemic standard deviation {spread}; the noise is 0.1",
        )
    if name == "char_transformer":
        pairs = run["pairs"]
        other = f"counts of pairs: {pairs['accuracy']:.1%}, NLL {pairs['nll']:.3f}"
    elif single := next((key for key in ("last network", "fitted network") if key in run), None):
        alone = run[single]
        other = (
            f"the {single} alone: {alone['accuracy']:.1%}, NLL {alone['nll']:.3f}, calibration "
            f"error {alone['calibration_error']:.3f}"
        )
    else:
        other = f"logistic regression: {run['logistic regression']:.1%}"
    return (
        f"{scores['accuracy']:.1%}, NLL {scores['nll']:.3f}",
        f"calibration error {scores['calibration_error']:.3f}",
        other,
    )


def main(runs: Path) -> None:
    known = json.loads(RESULTS.read_text())["runs"] if RESULTS.exists() else {}
    for file in sorted(runs.glob("*/*.json")):
        known[file.stem] = json.loads(file.read_text())
        shutil.copy(file.with_suffix(".png"), PAGE.parent / "examples")
    RESULTS.write_text(json.dumps({**origin("cpu"), "runs": known}, indent=1) + "\n")
    PAGE.write_text(TABLE.sub(lambda _: table(known), PAGE.read_text()))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
