"""What the laboratory's commands share: options, errors in one line, page, picture and terminal."""

from __future__ import annotations

import argparse
import logging
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from lab.pages import NoPlaceError, markdown

PICTURES = (".svg", ".png", ".pdf", ".jpg")


class CommandError(ValueError):
    """An option that cannot be had."""


def study(about: str | None, out: str | None = None, *, jobs: str = "") -> argparse.ArgumentParser:
    """A parser with --out, which must be given where there is no usual place for it, and --jobs:
    how many of what ``jobs`` names are run at a time."""
    parser = argparse.ArgumentParser(description=about)
    place: dict[str, Any] = {"required": True} if out is None else {"default": Path(out)}
    parser.add_argument("--out", type=Path, help="the results; it goes on", **place)
    if jobs:
        parser.add_argument("--jobs", type=at_least(1), default=1, help=f"{jobs} side by side")
    return parser


def add_device(parser: argparse.ArgumentParser) -> None:
    """--device, a GPU where there is one."""
    default = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--device", default=default, help="cpu, cuda, cuda:0, ...")


def options(name: str, about: str, *, out: str) -> argparse.ArgumentParser:
    """A parser with --out, --page, --plot and --device."""
    parser = study(about, out)
    parser.prog = f"python -m lab.{name}"
    parser.add_argument("--page", type=Path, help="a page whose table to replace")
    parser.add_argument("--plot", type=Path, help="draw a picture (SVG, PNG)")
    add_device(parser)
    return parser


def at_least(low: int) -> Callable[[str], int]:
    """The type of an option that is a whole number from ``low`` on."""

    def number(text: str) -> int:
        if not text.lstrip("-").isdigit() or int(text) < low:
            raise argparse.ArgumentTypeError(f"must be a whole number from {low} on, got {text!r}")
        return int(text)

    return number


def seconds(text: str) -> float:
    """The type of an option that is a time: finite and not negative."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"must be finite and not negative, got {text!r}")
    return value


def say(line: str) -> None:
    """Progress, which is no part of what a command prints."""
    print(line, file=sys.stderr, flush=True)


class Heard(logging.Handler):
    """What the library says inside a ``with``, from a level on."""

    def __init__(self, level: int = logging.NOTSET) -> None:
        super().__init__(level)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())

    def __enter__(self) -> Heard:
        logging.getLogger("natural_langevin").addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        logging.getLogger("natural_langevin").removeHandler(self)


def guarded(command: Callable[[], None]) -> None:
    """Runs a command; what its user can act on is one line and exit code 2."""
    try:
        command()
    except (ValueError, OSError, ImportError) as error:
        if type(error) is ValueError:  # a mistake of ours: what users can act on has a name
            raise
        say(f"error: {' '.join(str(error).split())}")
        raise SystemExit(2) from None


def publish(module: Any, results: Mapping[str, Any], page: Path | None, plot: Path | None) -> None:
    """Into the page and the picture, where they were asked for; ``module`` makes both."""
    if page is not None:
        if not page.is_file():
            raise CommandError(f"there is no {page}: give --page a text with a table to replace")
        try:
            text = module.with_table(page.read_text(encoding="utf-8"), results)
        except NoPlaceError as error:
            raise CommandError(f"{page} {error}") from None
        page.write_text(text, encoding="utf-8")
    if plot is not None:
        if plot.suffix.lower() not in PICTURES:
            raise CommandError(f"{plot} is no picture: use a name that ends in .svg or .png")
        module.plot(results, plot)


def show(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """The rows on the terminal, as they are on a page."""
    print(markdown(columns, rows), flush=True)
