"""SIGKILL of a worker under ``torchrun --max-restarts``: the run goes on, and nothing is lost."""

from __future__ import annotations

import json
import shutil
import time

import broken_off
import launch
import pytest

from natural_langevin import Posterior
from small_run import network

RESTARTS = 3


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("killed")


@pytest.fixture(scope="module")
def found(folder, four_ranks):
    """What the last attempt found, by rank."""
    shutil.copytree(four_ranks[0] / "broken off", folder / "of four")
    broken_off.break_off(folder / "of one", parallel=None)
    with launch.started(
        launch.HERE / "killed_run.py", folder, ranks=2, max_restarts=RESTARTS,
        environment={"NATURAL_LANGEVIN_TIMEOUT": "200"},
    ) as running:  # fmt: skip
        deadline = time.monotonic() + 300
        while not (folder / "killed-0").exists():
            assert running.running, running.output
            assert time.monotonic() < deadline, running.output
            time.sleep(0.05)
        assert running.kill(rank=1)
        output = running.finish(timeout=600)
    (folder / "output").write_text(output)
    return [json.loads((folder / f"found-{rank}.json").read_text()) for rank in (0, 1)]


def test_every_attempt_but_the_last_was_killed(found, folder):
    assert [one["attempts"] for one in found] == [RESTARTS + 1] * 2
    notes = [(folder / f"killed-{k}").read_text() for k in range(RESTARTS)]
    assert "parts.py" in notes[1] or "tensorfile.py" in notes[1] or "atomic.py" in notes[1]
    assert not (folder / f"killed-{RESTARTS}").exists()


def test_attempts_go_on_from_the_last_checkpoint_that_is_whole(found, folder):
    """Of the first run: killed in step 11, with checkpoints after 3, 6 and 9; then while the one
    after 15 was written, so that the one after 12 is the last."""
    output = (folder / "output").read_text()
    for rank in (0, 1):
        said = [line for line in output.splitlines() if f"rank {rank}: resuming" in line]
        assert said[:2] == [
            f"attempt 1 rank {rank}: resuming at step 9",
            f"attempt 2 rank {rank}: resuming at step 12",
        ]


@pytest.mark.parametrize("run", ["chains", "data"])
def test_nothing_is_lost(found, run):
    assert [one[run] for one in found] == [[], []]


def test_the_posterior_of_all_ranks_is_that_of_one(found, folder):
    saved = Posterior.load(folder / "chains saved", network())
    assert broken_off.differences(saved, broken_off.sample(None)) == []


@pytest.mark.parametrize("number", ["four", "one"])
def test_two_processes_go_on_with_a_run_of_another_number(found, number):
    assert [one[f"of {number}"] for one in found] == [[], []]
