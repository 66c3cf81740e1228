"""Machines that measure may have torch, numpy and safetensors alone: commands run there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import natural_langevin

PROGRAM = """
import sys

class Without:
    def __init__(self, finder):
        self.finder = finder

    def find_spec(self, name, path=None, target=None):
        optional = {"sklearn", "rich", "typer", "matplotlib", "jinja2", "arviz",
                    "scipy", "pandas", "PIL", "posteriors", "blackjax", "jax"}
        if name.split(".")[0] not in optional:
            return self.finder.find_spec(name, path, target)

sys.meta_path[:] = [Without(finder) for finder in sys.meta_path]

from lab.fidelity.__main__ import main
main(["rmsprop", "--data=synthetic", "--seconds=.1", "--pilot=0", "--depth=8", "--width=2",
      "--batch-size=20", "--looks=2", "--device=cpu", f"--out={sys.argv[1]}/fidelity.json"])

from lab import matrix
from lab.beyond import __main__ as beyond
from lab.shift import __main__ as shift
beyond.arguments().parse_args(["--out", "x.json"])
"""


def test_commands_with_torch_alone(tmp_path: Path) -> None:
    source = Path(natural_langevin.__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path)], capture_output=True, text=True,
        cwd=Path(__file__).parents[2],
        env={"PYTHONPATH": str(source), "PATH": os.environ["PATH"], "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "agreement" in done.stdout
    assert json.loads((tmp_path / "fidelity.json").read_text())["rows"]["rmsprop"]["done"]
