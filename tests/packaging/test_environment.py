"""environment.yml asks conda for what pyproject.toml asks pip for; Python versions are declared."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def required(extra: str) -> set[str]:
    """Requirements of an extra, those of the extras that it names among them."""
    found = set[str]()
    for words in PROJECT["optional-dependencies"][extra]:
        own = re.fullmatch(r"natural-langevin\[(.*)\]", words)
        found |= set[str]().union(*map(required, own[1].split(","))) if own else {words}
    return found


def test_conda_is_asked_for_what_pip_is() -> None:
    asked = yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"]
    assert asked[-2:] == ["pip", {"pip": ["."]}]
    names = {re.sub(r"^pytorch\b", "torch", words).replace(" ", "") for words in asked[:-2]}
    python = f"python{PROJECT['requires-python']}"
    assert names == {python, *PROJECT["dependencies"], *required("run")}


def test_python_versions_are_declared() -> None:
    found = [c.rpartition(" ")[2] for c in PROJECT["classifiers"] if ":: Python ::" in c]
    assert found == ["3.11", "3.12", "3.13"]
