"""A real Ctrl-C in a real process: exit code 130, a remedy, and the same result in the end."""

import os
import signal
import time
from pathlib import Path

import warm
from natural_langevin.tabular.run import load_learned
from tables import SMALL, flowers, run


def test_ctrl_c_saves_and_says_how_to_go_on(tmp_path):
    table = flowers(tmp_path / "flowers.csv", rows=40)
    words = ["train", str(table), "--target", "kind", *SMALL, "--steps", "250"]
    out, log, script = tmp_path / "run", tmp_path / "said", tmp_path / "command.py"
    script.write_text(
        f"import sys; sys.path.insert(0, {str(Path(warm.__file__).parent)!r})\n"
        "import pytest, runpy, short_recipe\n"
        "short_recipe.shorten(pytest.MonkeyPatch())  # as in this process: the plan is kept\n"
        "runpy.run_module('natural_langevin.cli', run_name='__main__')\n"
    )
    with Path(os.devnull).open("r+") as nothing, log.open("w") as saying:
        process = warm.start(
            [script, *words, "--out", out], stdin=nothing, stdout=nothing, stderr=saying
        )
    saved = out / "checkpoint"
    for _ in range(1200):  # stopped by progress, not by the clock: after the first checkpoint
        if saved.is_dir() and any(not p.name.startswith(".") for p in saved.iterdir()):
            break
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGINT)
    code, said = process.wait(timeout=300), log.read_text()
    assert code == 130, said
    assert "Traceback" not in said
    assert f"natural-langevin train {table}" in said
    assert "--resume" in said
    assert "run the same command again" not in said
    assert not (out / "quality.json").exists()

    assert run(*words, "--out", out, "--resume").exit_code == 0
    assert run(*words, "--out", tmp_path / "whole").exit_code == 0
    ended, whole = (load_learned(f).best for f in (out, tmp_path / "whole"))
    for name, samples in whole.samples.items():
        assert samples.equal(ended.samples[name])
