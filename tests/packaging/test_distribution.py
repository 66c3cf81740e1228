"""What ``python -m build`` makes: a wheel that works in an environment of its own."""

from __future__ import annotations

import email
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import textwrap
import tomllib
import zipfile
from email.message import Message
from pathlib import Path

import pytest

import natural_langevin

ROOT = Path(__file__).parents[2]
EXTRAS = {"cli", "report", "run", "sklearn", "bench", "lightning", "transformers", "docs", "dev"}
#: What the package needs beside its modules.
DATA = ["py.typed", "cli/pages/templates/", "execution/kernels/native/engine.c", "linear.h"]

SMOKE = """
import sys
from pathlib import Path

import torch
from torch import nn

import natural_langevin
from natural_langevin import Langevin, likelihoods

here = Path(natural_langevin.__file__).parent
assert here.is_relative_to(sys.prefix), here
assert (here / "py.typed").exists()
assert list(here.rglob("*.h")) and list(here.glob("cli/pages/templates/*"))

x = torch.rand(60, 2)
model = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 2))
sampler = Langevin(model, likelihoods.Categorical(), chains=2)
posterior = sampler.sample((x, (x.sum(1) > 1).long()), steps=10, batch_size=20, progress=False)
assert torch.allclose(posterior.predict(x).mean.sum(1), torch.ones(60))
print(natural_langevin.__version__)
"""


def run(*words: str | Path, cwd: Path) -> str:
    """What a command prints. It must not see this checkout through PYTHONPATH."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    done = subprocess.run(
        list(map(str, words)), cwd=cwd, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with sdist and wheel, the wheel made from the sdist. Without network."""
    folder = tmp_path_factory.mktemp("build")
    copy = folder / "checkout"
    shutil.copytree(
        ROOT / "src", copy / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info")
    )
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy / name)
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, copy, cwd=folder)
    return folder


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    (path,) = built.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [n for n in archive.namelist() if n.endswith(".dist-info/METADATA")]
        return email.message_from_bytes(archive.read(name))


def test_wheel_and_sdist_hold_the_package_and_its_data(built: Path, wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        packed = archive.getnames()
    modules = {str(p.relative_to(ROOT / "src")) for p in (ROOT / "src").rglob("*.py")}
    assert modules <= set(names)
    assert not any(name.startswith(("tests", "docs", "lab")) for name in names)
    assert wheel.stat().st_size < 1_000_000
    for wanted in DATA:
        assert any(wanted in name for name in names), wanted
        assert any(wanted in name for name in packed), wanted


def test_the_wheel_works_outside_the_checkout(wheel: Path, tmp_path: Path) -> None:
    """In a new environment that borrows only the dependencies of this one."""
    run(sys.executable, "-m", "venv", "--without-pip", "env", cwd=tmp_path)
    python = tmp_path / "env" / "bin" / "python"
    (site,) = (tmp_path / "env" / "lib").glob("python*/site-packages")
    # A path alone: the .pth files in it, of an editable install for one, are not read.
    (site / "borrowed.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    run(
        sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index",
        "--quiet", wheel, cwd=tmp_path,
    )  # fmt: skip
    version = run(python, "-W", "error", "-c", textwrap.dedent(SMOKE), cwd=tmp_path)
    assert version.strip() == natural_langevin.__version__
    shown = run(tmp_path / "env" / "bin" / "natural-langevin", "--help", cwd=tmp_path)
    assert "reproduce" in shown


def test_extras_exist_and_name_only_extras_that_exist(metadata: Message) -> None:
    extras = set(metadata.get_all("Provides-Extra") or [])
    assert extras >= EXTRAS
    table = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert extras == set(table["optional-dependencies"])
    for requirements in table["optional-dependencies"].values():
        for requirement in requirements:
            if requirement.startswith("natural-langevin["):
                named = requirement.partition("[")[2].partition("]")[0].split(",")
                assert set(named) <= extras


def test_the_metadata_says_what_a_reader_needs(metadata: Message) -> None:
    assert metadata["Name"] == "natural-langevin"
    assert metadata["Version"] == natural_langevin.__version__
    assert metadata["License-Expression"] == "MIT"
    assert "Typing :: Typed" in (metadata.get_all("Classifier") or [])
    required = [r for r in metadata.get_all("Requires-Dist") or [] if "extra ==" not in r]
    assert sorted(r.split(">")[0] for r in required) == ["numpy", "safetensors", "torch"]
