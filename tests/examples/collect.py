"""Gathers full-size runs of the examples: `python tests/examples/collect.py RUNS`.

RUNS holds one folder per example, as the commands in docs/examples.md write them. Their JSON files
become results/examples.json, with the machine and versions, and their pictures go to docs/examples.
"""

import json
import shutil
import sys
from pathlib import Path

from natural_langevin.experiments.origin import origin

ROOT = Path(__file__).parents[2]


def main(runs: Path) -> None:
    found = {}
    for folder in sorted(f for f in runs.iterdir() if f.is_dir()):
        found[folder.name] = json.loads((folder / f"{folder.name}.json").read_text())
        pictures = ROOT / "docs" / "examples"
        pictures.mkdir(exist_ok=True)
        shutil.copy(folder / f"{folder.name}.png", pictures)
    results = {**origin("cpu"), "runs": found}
    (ROOT / "results" / "examples.json").write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
