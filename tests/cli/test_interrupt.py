"""A real Ctrl-C in a real process: exit code 130, a remedy, and the same result in the end."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import natural_langevin
from natural_langevin.tabular.run import load_learned
from tables import SMALL, flowers, run


@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_saves_and_says_how_to_go_on(tmp_path):
    table = flowers(tmp_path / "flowers.csv", rows=40)
    words = ["train", str(table), "--target", "kind", *SMALL, "--steps", "250"]
    out = tmp_path / "run"
    source = str(Path(natural_langevin.__file__).parents[1])
    process = subprocess.Popen(
        [sys.executable, "-m", "natural_langevin.cli", *words, "--out", str(out)],
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": source},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    saved = out / "checkpoint"
    for _ in range(1200):  # stopped by progress, not by the clock: after the first checkpoint
        if saved.is_dir() and any(not p.name.startswith(".") for p in saved.iterdir()):
            break
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=300)
    assert process.returncode == 130, said
    assert "Traceback" not in said
    assert f"natural-langevin train {table}" in said
    assert "--resume" in said
    assert "run the same again" not in said
    assert not (out / "quality.json").exists()

    assert run(*words, "--out", out, "--resume").exit_code == 0
    assert run(*words, "--out", tmp_path / "whole").exit_code == 0
    ended, whole = (load_learned(f).best for f in (out, tmp_path / "whole"))
    for name, samples in whole.samples.items():
        assert samples.equal(ended.samples[name])
