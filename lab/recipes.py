"""The comparison of docs/recipes/active_learning.md, with the page's own code and five seeds.

python -m lab.recipes [--out results/active_learning.json]           (minutes)
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from lab.command import study
from lab.results import write_results
from natural_langevin.cli.experiments.origin import origin

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "recipes" / "active_learning.md"
SEEDS, ROUNDS = range(5), 4


def page() -> dict[str, Any]:
    """What the page's code blocks define."""
    names: dict[str, Any] = {"__name__": "__main__"}
    for code in re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL):
        exec(compile(code, str(PAGE), "exec"), names)
    return names


def main() -> None:
    out = study(__doc__, str(ROOT / "results" / "active_learning.json")).parse_args().out
    names = page()
    runs = {
        choice: [names["learn"](names[choice], seed=seed, rounds=ROUNDS) for seed in SEEDS]
        for choice in ("most_together", "most_uncertain", "at_random")
    }
    means = {k: [sum(s) / len(s) for s in zip(*v, strict=True)] for k, v in runs.items()}
    results = origin("cpu") | {
        "script": "lab/recipes.py, with the code of docs/recipes/active_learning.md",
        "labels": [40 + 20 * k for k in range(ROUNDS + 1)],
        "seeds": list(SEEDS),
        "held-out nll": runs,
        "mean over seeds": means,
    }
    write_results(out, results)
    for choice, values in means.items():
        print(choice, [round(v, 3) for v in values])


if __name__ == "__main__":
    main()
