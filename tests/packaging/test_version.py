"""One version, in one place; what else names it agrees."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import yaml

from natural_langevin import __version__

ROOT = Path(__file__).parents[2]
CITATION = yaml.safe_load((ROOT / "CITATION.cff").read_text())


def test_the_project_file_reads_the_version_from_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert "version" not in project["project"]
    where = project["tool"]["setuptools"]["dynamic"]["version"]["attr"]
    assert where == "natural_langevin._internal.version.__version__"


def test_the_changelog_begins_with_this_version() -> None:
    first = re.search(r"^## \[(.+?)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert first is not None
    assert first[1] in (__version__, "Unreleased")


def test_the_citation_names_this_version_and_licence() -> None:
    assert str(CITATION["version"]) == __version__
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert CITATION["license"] == project["license"]
    assert CITATION["keywords"] == project["keywords"]


def test_the_citation_has_what_its_format_requires() -> None:
    assert CITATION["cff-version"] == "1.2.0"
    assert {"message", "title", "authors"} <= set(CITATION)
    assert CITATION["authors"] == [{"name": "Natural Langevin contributors"}]
    paper = CITATION["preferred-citation"]
    assert paper["type"] == "conference-paper"
    assert [a["family-names"] for a in paper["authors"]] == ["Marceau-Caron", "Ollivier"]
    assert "arXiv:1712.01076" in {i["value"] for i in paper["identifiers"]}


def test_the_readmes_citation_is_the_same_paper() -> None:
    readme = (ROOT / "README.md").read_text()
    assert "1712.01076" in readme
    assert str(CITATION["preferred-citation"]["year"]) in readme
