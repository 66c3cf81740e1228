"""The order of the integrators: bias of the stationary second moment against the step size.

    python -m lab.integrator_order --out results/integrator-order.json

Nothing is sampled: see tests/law/integrator_order.py, which the tests use too.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests" / "law"), str(ROOT / "tests")]

from integrator_order import ETAS, GAUSSIAN, QUARTIC, THEORY, bias, slope  # noqa: E402

from lab.command import study  # noqa: E402
from lab.results import write_results  # noqa: E402
from natural_langevin.cli.experiments.origin import origin  # noqa: E402


def main() -> None:
    """Writes a row for every target and integrator."""
    out = study(__doc__).parse_args().out
    rows = []
    for (target, name), order in THEORY.items():
        biases = [bias(target, name, eta) for eta in ETAS]
        found = slope(ETAS, biases) if order is not None else (None, None)
        integrator = (GAUSSIAN if target == "gaussian" else QUARTIC)[name]
        rows.append({
            "target": target, "integrator": name, "dynamics": repr(integrator), "order": order,
            "slope": found[0], "slope_error": found[1], "step_sizes": ETAS, "bias": biases,
        })  # fmt: skip
        print(target, name, order, found)
    write_results(out, {"origin": origin("cpu"), "rows": rows})


if __name__ == "__main__":
    main()
