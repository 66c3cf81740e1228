"""Machines that measure may have torch, numpy and safetensors alone: the package and the
experiments' own commands run there, and a first run loads nothing that it does not need. One fresh
interpreter, since torch takes seconds to load."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import natural_langevin

OPTIONAL = [
    "sklearn", "rich", "typer", "matplotlib", "jinja2", "torchmetrics", "arviz",
    "scipy", "pandas", "onnx", "lightning", "transformers", "accelerate", "PIL", "posteriors",
    "blackjax", "jax",
]  # fmt: skip

#: What a first run does without, whether or not it is there.
HEAVY = (
    "torch._dynamo", "torch._inductor", "torch.distributed.tensor", "sympy", "scipy", "sklearn",
    "pandas", "arviz", "matplotlib", "rich", "triton",
)  # fmt: skip

PROGRAM = f'''
import gc, json, sys
import torch
from torch import nn
before = set(sys.modules)
import natural_langevin
new = {{name.split(".")[0] for name in set(sys.modules) - before}}
said = {{"imported": sorted(new - set(sys.stdlib_module_names))}}

from natural_langevin import Langevin, likelihoods
sys.path.append({str(Path(__file__).parents[1])!r})
from short_recipe import SHORT
x = torch.rand(100, 2)
y = (x.sum(1) > 1).long()
model = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 2))
Langevin(model, likelihoods.Categorical(), recipe=SHORT).sample((x, y)).predict(x)
said["heavy"] = [name for name in {HEAVY!r} if name in sys.modules]
said["garbage"] = [gc.isenabled(), gc.get_freeze_count()]

class Without:
    """A finder that does not find the optional packages."""

    def __init__(self, finder):
        self.finder = finder

    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] not in {OPTIONAL!r}:
            return self.finder.find_spec(name, path, target)

sys.meta_path[:] = [Without(finder) for finder in sys.meta_path]


from natural_langevin.cli.experiments import bench
bench.SECONDS = 0.02
options = bench.Options(network="2-32-2", chains=(1,), repeats=1, threads=1)
said["bench"] = [row["name"] for row in bench.run(options)["rows"]]
print(json.dumps(said))
'''


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path]:
    folder = tmp_path_factory.mktemp("alone")
    source = str(Path(natural_langevin.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(folder)], capture_output=True, text=True, cwd=folder,
        env={"PYTHONPATH": source, "PATH": os.environ["PATH"], "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), folder


def test_the_package_loads_torch_numpy_and_safetensors(ran: tuple[dict[str, Any], Path]) -> None:
    assert set(ran[0]["imported"]) - {"torch", "numpy", "safetensors"} == {"natural_langevin"}


def test_a_first_run_loads_no_compiler_and_no_algebra(ran: tuple[dict[str, Any], Path]) -> None:
    assert ran[0]["heavy"] == []
    assert ran[0]["garbage"] == [True, 0], "garbage is collected as ever"


def test_the_bench(ran: tuple[dict[str, Any], Path]) -> None:
    names = ["SGD", "SGD + randn", "Adam", "optimizer, QDOP", "Euclidean", "RMSProp", "DOP", "QDOP"]
    assert [name for name in ran[0]["bench"] if name != "IVON"] == names  # it needs torch alone
