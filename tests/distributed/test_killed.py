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

RESTARTS = 4


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
        environment={"NATURAL_LANGEVIN_TIMEOUT": "60"},
    ) as running:  # fmt: skip
        deadline = time.monotonic() + 120
        while not (folder / "killed-0").exists():
            assert running.running and time.monotonic() < deadline, running.output
            time.sleep(0.05)
        assert running.kill(rank=1)
        output = running.finish(timeout=300)
    (folder / "output").write_text(output)
    return [json.loads((folder / f"found-{rank}.json").read_text()) for rank in (0, 1)]


def test_every_attempt_but_the_last_was_killed(found, folder):
    assert [one["attempts"] for one in found] == [RESTARTS + 1] * 2
    assert sorted(p.name for p in folder.glob("killed-*")) == [f"killed-{k}" for k in range(4)]
    for attempt, file in ((1, "checkpoint"), (2, ""), (3, "")):
        assert file in (folder / f"killed-{attempt}").read_text()


@pytest.mark.parametrize("run", ["chains", "data"])
def test_nothing_is_lost(found, run):
    assert [one[run] for one in found] == [[], []]


def test_the_posterior_of_all_ranks_is_that_of_one(found, folder):
    saved = Posterior.load(folder / "chains saved", network())
    assert broken_off.differences(saved, broken_off.sample(None)) == []


@pytest.mark.parametrize("number", ["four", "one"])
def test_two_processes_go_on_with_a_run_of_another_number(found, number):
    assert [one[f"of {number}"] for one in found] == [[], []]
