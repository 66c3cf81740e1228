"""``python -m lab.shift``: turned, blurred, noisy, pale and foreign images."""

from __future__ import annotations

from lab import command
from lab.shift import table
from lab.shift.methods import METHODS, Settings
from lab.shift.run import ShiftError, run
from natural_langevin import data as datasets

DATA = ("mnist", "fashion-mnist", "digits")
ABOUT = """What a posterior knows of shifted images, beside a deep ensemble and MC dropout, all with
the same number of gradients. Rotation, blur, noise and contrast come in five strengths; AUROC says
how well epistemic uncertainty tells foreign images."""


def main(words: list[str] | None = None) -> None:
    """Runs what is asked for and not done, and shows the table."""
    parser = command.options("shift", ABOUT, out="shift.json")
    parser.add_argument("methods", nargs="*", help=f"{', '.join(METHODS)} [default: all]")
    parser.add_argument("--data", default="mnist", help=", ".join(DATA))
    parser.add_argument("--data-dir", help="where the data sets lie")
    parser.add_argument(
        "--foreign", nargs="*", default=["shuffled"], help="fashion-mnist, cifar10, shuffled"
    )
    parser.add_argument("--hidden", nargs="*", type=command.at_least(1), default=[400, 400])
    for name, low in {"steps": 20, "chains": 1, "images": 1, "seed": 0}.items():
        default = getattr(Settings, name)
        parser.add_argument(f"--{name}", type=command.at_least(low), default=default)
    given = parser.parse_args(words)

    def ran() -> None:
        if given.data not in DATA:
            raise ShiftError(f"there are no data {given.data!r}: choose from {', '.join(DATA)}")
        settings = Settings(
            steps=given.steps, chains=given.chains, images=given.images, seed=given.seed,
            hidden=tuple(given.hidden),
        )  # fmt: skip
        results = run(
            datasets.load(given.data, data_dir=given.data_dir), given.out, settings=settings,
            foreign=given.foreign, names=given.methods or tuple(METHODS), data_dir=given.data_dir,
            device=given.device, say=command.say,
        )  # fmt: skip
        command.publish(table, results, given.page, given.plot)
        command.show(table.columns(results), table.rows(results))

    command.guarded(ran)


if __name__ == "__main__":
    main()
