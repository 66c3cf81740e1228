"""``python -m lab.uci``: the field's regression benchmark, with one untuned setting for all."""

from __future__ import annotations

from pathlib import Path

from lab import command
from lab.uci import table
from lab.uci.data import TABLES
from lab.uci.run import merge, run
from natural_langevin.tabular.recipe import settings_from

ABOUT = """Nine regression tables on their published splits, beside published log-likelihoods.
Nothing is tuned: every fit is the recipe of `train` with its defaults. Interrupted, the same
command goes on with the next split. Several processes share the work where each has some splits and
a file of its own, which --merge joins; or --jobs."""


def main(words: list[str] | None = None) -> None:
    """Runs what is asked for and not done, and shows the table."""
    parser = command.options("uci", ABOUT, out="uci.json")
    parser.add_argument("tables", nargs="*", help=f"{', '.join(TABLES)} [default: all]")
    parser.add_argument(
        "--splits", type=command.at_least(1), help="the first so many of every table"
    )
    parser.add_argument("--split", type=int, nargs="+", default=[], help="these, from 0")
    parser.add_argument("--merge", type=Path, help="run nothing: join this folder's files")
    parser.add_argument("--jobs", type=command.at_least(1), default=1, help="processes")
    parser.add_argument("--seconds", type=float, help="what a fit may take")
    parser.add_argument("--steps", type=command.at_least(8), help="updates of every run")
    given = parser.parse_args(words)

    def ran() -> None:
        if given.merge is not None:
            results = merge(given.merge, given.out)
        else:
            results = run(
                given.tables or list(TABLES), given.out, splits=given.splits, only=given.split,
                settings=settings_from({"steps": given.steps, "seconds": given.seconds}),
                jobs=given.jobs, device=given.device, progress=True,
                say=command.say,
            )  # fmt: skip
        command.publish(table, results, given.page, given.plot)
        command.show(list(TABLES), table.rows(results))

    command.guarded(ran)


if __name__ == "__main__":
    main()
