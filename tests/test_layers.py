"""Data flow one way: a file imports only from what stands below it, and little from outside."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import natural_langevin

ROOT = Path(natural_langevin.__file__).parent
PACKAGE = "natural_langevin"

#: From the bottom up: a module (a file, or a folder as a whole) may import those before it.
ORDER = [
    "types", "_internal", "random", "schedules", "data", "models", "likelihoods", "priors",
    "statistics", "preconditioners", "dynamics", "execution", "metrics", "diagnostics", "posterior",
    "sampling", "distributed", "langevin", "optim", "integrations", "experiments", "sklearn",
    "tabular", "report", "cli",
]  # fmt: skip

#: What ``import natural_langevin`` must do without.
OPTIONAL = [
    "sklearn", "rich", "typer", "matplotlib", "jinja2", "torchmetrics", "arviz", "scipy", "pandas",
    "onnx", "lightning", "transformers", "accelerate",
]  # fmt: skip


def module_of(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def files() -> list[Path]:
    return [p for p in sorted(ROOT.rglob("*.py")) if p != ROOT / "__init__.py"]


def imported(path: Path) -> set[str]:
    """The package's own modules that a file imports, wherever in the file."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
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
                found.add(parts[1])
    return found


def is_module(name: str) -> bool:
    return (ROOT / f"{name}.py").exists() or (ROOT / name).is_dir()


@pytest.mark.parametrize("path", files(), ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_only_from_above(path: Path) -> None:
    own = module_of(path)
    assert own in ORDER, f"{own} has no place in the order: add it to ORDER in {__file__}"
    for other in imported(path) - {own}:
        if not is_module(other):
            # A name of the package itself (such as Langevin): as good as importing the sampler.
            assert hasattr(natural_langevin, other)
            other = "langevin"
        assert other in ORDER, f"{other} has no place in the order"
        assert ORDER.index(other) < ORDER.index(own), f"{own} imports {other}, which stands below"


def test_the_check_sees_imports() -> None:
    assert {"random", "statistics", "preconditioners", "priors"} <= imported(
        ROOT / "dynamics" / "frame.py"
    )
    assert len(files()) > 25


def test_import_needs_torch_numpy_and_safetensors_alone() -> None:
    """In a fresh interpreter where the optional packages do not exist."""
    program = f'''
import sys

class Without:
    """A finder that does not find the optional packages."""

    def __init__(self, finder):
        self.finder = finder

    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] not in {OPTIONAL!r}:
            return self.finder.find_spec(name, path, target)

sys.meta_path[:] = [Without(finder) for finder in sys.meta_path]
import torch
before = set(sys.modules)
import natural_langevin
new = {{name.split(".")[0] for name in set(sys.modules) - before}}
print(sorted(new - set(sys.stdlib_module_names) - {{"torch", "numpy", "safetensors"}}))
'''
    environment = {"PYTHONPATH": str(ROOT.parent), "PATH": ""}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "['natural_langevin']"
