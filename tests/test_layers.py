"""Data flow one way: a file imports only from what stands below it, and little from outside."""

from __future__ import annotations

import ast
import graphlib
import importlib
import inspect
import re
import types
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest

import natural_langevin
from source_trees import parsed

ROOT = Path(natural_langevin.__file__).parent
PACKAGE = "natural_langevin"

#: From the bottom up: a module (a file, or a folder as a whole) may import those before it.
ORDER = [
    "_internal", "random", "schedules", "data", "models", "priors", "likelihoods",
    "statistics", "preconditioners", "dynamics", "execution", "metrics", "diagnostics", "posterior",
    "distributed", "run/problem", "run", "recipe", "langevin", "optim", "slt", "evidence",
    "integrations", "tabular", "cli/experiments", "sklearn", "cli/pages", "cli",
]  # fmt: skip

#: What anything may import without saying so.
TOOLS = {"_internal", "random", "schedules"}


def entry(names: Sequence[str]) -> str:
    """Where a module stands in the order, by its path: ``run/problem`` comes before ``run``."""
    nested = "/".join(names[:2])
    return nested if nested in ORDER else names[0]


def module_of(path: Path) -> str:
    return entry([name.removesuffix(".py") for name in path.relative_to(ROOT).parts])


def files() -> list[Path]:
    """All but the two entry points, of ``import`` and of ``python -m``."""
    entries = {ROOT / "__init__.py", ROOT / "__main__.py"}
    return [p for p in sorted(ROOT.rglob("*.py")) if p not in entries]


def dotted(path: Path) -> str:
    """The module's name for ``import``."""
    parts = (PACKAGE, *path.relative_to(ROOT).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache  # every package asks it of every file
def imported(path: Path) -> frozenset[str]:
    """The package's own modules that a file imports, wherever in the file."""
    found = set()
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            here = (PACKAGE, *path.relative_to(ROOT).parts)
            base = ".".join([*here[: len(here) - node.level], node.module or ""]).strip(".")
            names = [f"{base if node.level else node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            parts = name.split(".")
            if parts[0] == PACKAGE and len(parts) > 1:
                found.add(entry(parts[1:]))
    return frozenset(found)


def is_module(name: str) -> bool:
    return (ROOT / f"{name}.py").exists() or (ROOT / name).is_dir()


def below(path: Path) -> list[str]:
    """What a file imports from further down, or from nowhere in the order."""
    own = module_of(path)
    # A name of the package itself (such as Langevin) is as good as importing the sampler.
    others = {
        "langevin" if not is_module(other) and hasattr(natural_langevin, other) else other
        for other in imported(path) - {own}
    }
    unknown = [name for name in (own, *others) if name not in ORDER]
    return unknown or [other for other in others if ORDER.index(other) >= ORDER.index(own)]


def test_imports_only_from_above() -> None:
    found = {str(path.relative_to(ROOT)): below(path) for path in files()}
    assert not {path: names for path, names in found.items() if names}, f"see ORDER in {__file__}"


def packages() -> list[str]:
    """``statistics``, ``statistics/rules``, ...: every folder with modules in it."""
    folders = {str(p.parent.relative_to(ROOT)) for p in files()} - {"."}
    return sorted(folders)


def named(words: str, own: str) -> set[str]:
    """The modules that a clause names; "X and up", "everything below it" and the like count."""
    found = {name for name in ORDER if re.search(rf"\b{name.split('/')[-1]}\b", words)}
    if "and up" in words:
        found |= set(ORDER[min(map(ORDER.index, found)) :])
    if "below" in words or "commands" in words:
        found |= set(ORDER[: ORDER.index(own)])
    return set(ORDER) if "everything may" in words else found


@pytest.mark.parametrize("package", packages())
def test_every_package_says_what_it_imports_and_what_imports_it(package: str) -> None:
    file, own = ROOT / package / "__init__.py", entry(package.split("/"))
    assert file.exists(), "a package needs an __init__.py that says what it is"
    words = " ".join((ast.get_docstring(parsed(file)) or "").split())
    said = re.search(r"Imports ([^.;]*); ([^.;]*) imports? it\.", words)
    assert said, f"{file} should say 'Imports ...; ... import it.'"
    inside = [p for p in files() if p.is_relative_to(file.parent)]
    actual = set().union(*map(imported, inside)) & set(ORDER) - {own} - TOOLS
    assert actual <= named(said[1], own)
    if package == own:
        users = {module_of(p) for p in files() if own in imported(p)} - {own}
        assert users <= named(said[2], own)


def test_few_modules_at_the_top_and_a_map_of_them_in_order() -> None:
    modules = {module_of(p) for p in files()}
    assert modules == set(ORDER)
    assert len({name.split("/")[0] for name in modules}) <= 25
    contributing = (Path(__file__).parents[1] / "CONTRIBUTING.md").read_text()
    mapped = re.findall(r"^  ([\w/]+?)(?:/|\.py) ", contributing, flags=re.MULTILINE)
    assert mapped == ORDER  # "a line imports from those above it"


def test_no_circles_between_files() -> None:
    """Among the imports that run when a file is loaded."""
    known = {dotted(p): p for p in files()}
    graph = {}
    for own, path in known.items():
        tree = parsed(path)
        nodes = [n for n in tree.body if isinstance(n, ast.ImportFrom) and n.module]
        wanted = {f"{n.module}.{a.name}" for n in nodes for a in n.names}
        modules = {w if w in known else w.rpartition(".")[0] for w in wanted}
        graph[own] = modules & set(known) - {own}
    assert sum(map(len, graph.values())) > 400
    graphlib.TopologicalSorter(graph).prepare()  # CycleError names the circle


def undocumented(module: object) -> list[str]:
    """Public classes, functions and methods without a docstring, their own or an inherited one."""
    found = []
    for name, thing in vars(module).items():
        own = getattr(thing, "__module__", None) == getattr(module, "__name__", "")
        if name.startswith("_") or not own or not (inspect.isclass(thing) or callable(thing)):
            continue
        members = vars(thing) if inspect.isclass(thing) else {}
        methods = [m for m, v in members.items() if inspect.isroutine(v) or isinstance(v, property)]
        for method in [m for m in methods if not m.startswith("_")]:
            default = getattr(members[method], "__name__", "") == "<lambda>"  # of a field
            if not default and not inspect.getdoc(getattr(thing, method)):
                found.append(f"{name}.{method}")
        if not inspect.getdoc(thing):
            found.append(name)
    return found


def test_public_functions_have_docstrings() -> None:
    modules = [dotted(path) for path in files() if path.stem != "__main__"]
    found = {name: undocumented(loaded(name)) for name in modules}
    assert not {name: missing for name, missing in found.items() if missing}


def loaded(name: str) -> object:
    """The module; an empty one where its error says that its extra is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        if ".integrations." not in name or "pip install 'natural-langevin[" not in str(error):
            raise
        return types.SimpleNamespace()


def test_the_check_sees_imports() -> None:
    assert {"random", "statistics", "preconditioners", "priors"} <= imported(
        ROOT / "dynamics" / "frame.py"
    )
    assert len(files()) > 25


def test_nothing_asks_a_likelihood_for_its_class() -> None:
    """What depends on a likelihood is asked of it (``link``, ``has_units``, ...), so that one of a
    user's own is treated like the library's."""
    own = {path for path in files() if module_of(path) == "likelihoods"}
    asked = []
    for path in set(files()) - own:
        text = path.read_text()
        if "isinstance" not in text or "likelihoods" not in text:
            continue
        tree = parsed(path)
        of = {
            alias.asname or alias.name
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and node.module == f"{PACKAGE}.likelihoods"
            for alias in node.names
        } - {"Likelihood"}
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "isinstance":
                kinds = ast.unparse(node.args[1])
                named = re.findall(r"likelihoods\.(?!Likelihood\b)\w+", kinds)
                if named or of & set(re.findall(r"\w+", kinds)):
                    asked.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert not asked
