"""Checkpoints of four ranks: whole or not there, read by any number of ranks, refused together;
and SIGKILL of a worker under ``torchrun --max-restarts``: the run goes on, and nothing is lost."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from pathlib import Path

import broken_off
import checkpoint_checks
import launch
import pytest
import torch

import natural_langevin
from natural_langevin import Posterior
from natural_langevin.distributed.join import join
from natural_langevin.run.checkpoint import NEWEST, PREVIOUS, CheckpointError
from small_run import network

RESTARTS = 3
PACKAGE = str(Path(natural_langevin.__file__).parent)


@pytest.fixture(scope="module")
def four_ranks(tmp_path_factory):
    """All of ``checkpoint_checks`` on four ranks: the folder they worked in, and the outcomes."""
    names = [n.removeprefix("check_") for n in vars(checkpoint_checks) if n.startswith("check_")]
    folder = tmp_path_factory.mktemp("four")
    outcomes = launch.checks(
        "checkpoint_checks", names, ranks=4, folder=folder, timeout=600,
        imported=("checkpoint_checks",),
    )  # fmt: skip
    return folder, outcomes


@pytest.fixture(scope="module")
def folder(four_ranks):
    return four_ranks[0]


@pytest.fixture(scope="module")
def found(four_ranks):
    return four_ranks[1]


def values(outcomes: list[launch.Outcome]) -> list:
    assert [one.error for one in outcomes] == [None] * 4
    return [one.value for one in outcomes]


def the_error(outcomes: list[launch.Outcome], kind: str) -> str:
    """The same on all ranks."""
    assert [one.kind for one in outcomes] == [kind] * 4, outcomes
    (text,) = {one.error for one in outcomes}
    return text


def test_what_was_written_is_read(found):
    for before, after, names, size in values(found["round_trip"]):
        assert (before, after) == (None, 3)
        assert names == [NEWEST, PREVIOUS]
        whole = checkpoint_checks.tree(range(3), 3)
        numbers = sum(t.nbytes for t in torch.utils._pytree.tree_leaves(whole))
        assert numbers < size < numbers + 4096  # every copy once, and a header


def test_fewer_ranks_read_it(found):
    assert values(found["other_numbers_of_ranks"]) == [[3, 3], [3, None], [None, None], [None] * 2]


def test_one_process_reads_and_goes_on(found, folder):
    values(found["round_trip"])
    alone = join("cpu")
    assert checkpoint_checks.loaded(alone, folder / "round trip") == 3
    checkpoint_checks.saved(alone, folder / "round trip", 4)
    assert checkpoint_checks.loaded(alone, folder / "round trip") == 4


def test_what_one_process_wrote_is_read_by_four(found):
    assert values(found["of_one_process"]) == [[5, 6]] * 4


def test_damage_sends_all_to_the_checkpoint_before(found):
    assert values(found["damaged"]) == [[1, 1]] * 4
    assert "is damaged" in the_error(found["all_damaged"], "CheckpointError")
    assert values(found["two_good_ones_stay"]) == [[1, True]] * 4


def test_another_run_is_refused_on_all_ranks(found):
    text = the_error(found["another_run"], "OtherRunError")
    assert "another run: seed, step_size differ (seed: 1 there, 2 here)" in text


def test_a_disk_that_is_full_at_one_rank(found):
    text = the_error(found["full_disk_at_one_rank"], "WriteError")
    assert "File too large (rank 2). The previous checkpoint is intact" in text
    for before, after, left, names in values(found["after_the_full_disk"]):
        assert (before, after) == (1, 3)
        assert left == names == [NEWEST]


def test_a_folder_that_cannot_be_made(found):
    text = the_error(found["no_folder"], "WriteError")
    assert "cannot write checkpoints to" in text
    assert "Give another folder" in text


def test_a_folder_that_is_not_shared(found):
    text = the_error(found["folder_not_shared"], "CheckpointError")
    assert "ranks [3] do not see the folder" in text


def test_half_a_checkpoint_is_none(found):
    assert values(found["left_by_the_dead"]) == [[1, [NEWEST]]] * 4


def test_one_process_goes_on_with_a_run_of_four(found, folder, tmp_path):
    assert values(found["run_broken_off"]) == [[NEWEST, PREVIOUS]] * 4
    shutil.copytree(folder / "broken off", tmp_path / "run")
    alone = broken_off.sample(None, checkpoint=tmp_path / "run")
    assert broken_off.differences(alone, broken_off.sample(None)) == []


def test_samples_in_files_are_gone_on_with_by_the_same_number_of_ranks(found, folder):
    assert values(found["run_in_files"]) == [[]] * 4
    with pytest.raises(
        CheckpointError, match=r"each of 4 processes.*there are 1 now: continue with 4"
    ):
        broken_off.sample(None, checkpoint=folder / "with draws", store=folder / "elsewhere")


# Killed -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def wreck(tmp_path_factory):
    return tmp_path_factory.mktemp("killed")


@pytest.fixture(scope="module")
def survived(wreck, four_ranks):
    """What the last attempt found, by rank."""
    shutil.copytree(four_ranks[0] / "broken off", wreck / "of four")
    broken_off.break_off(wreck / "of one", parallel=None)
    with launch.started(
        launch.HERE / "killed_run.py", wreck, ranks=2, max_restarts=RESTARTS,
        environment={"NATURAL_LANGEVIN_TIMEOUT": "200"},
        imported=("broken_off", "natural_langevin.distributed.join"),
    ) as running:  # fmt: skip
        deadline, note = time.monotonic() + 300, wreck / "killed-0"
        while not (note.exists() and note.read_text()):
            assert running.running, running.output
            assert time.monotonic() < deadline, running.output
            time.sleep(0.05)
        os.kill(int(note.read_text()), signal.SIGKILL)
        output = running.finish(timeout=600)
    (wreck / "output").write_text(output)
    return [json.loads((wreck / f"found-{rank}.json").read_text()) for rank in (0, 1)]


def test_every_attempt_but_the_last_was_killed(survived, wreck):
    assert [one["attempts"] for one in survived] == [RESTARTS + 1] * 2
    notes = [(wreck / f"killed-{k}").read_text() for k in range(RESTARTS)]
    assert "checkpoint.py" in notes[1] or "file.py" in notes[1] or "atomic.py" in notes[1]
    assert not (wreck / f"killed-{RESTARTS}").exists()


def test_attempts_go_on_from_the_last_checkpoint_that_is_whole(survived, wreck):
    """Of the first run: killed in step 11, with checkpoints after 3, 6 and 9; then while the one
    after 15 was written, so that the one after 12 is the last."""
    output = (wreck / "output").read_text()
    for rank in (0, 1):
        said = [line for line in output.splitlines() if f"rank {rank}: resuming" in line]
        assert said[:2] == [
            f"attempt 1 rank {rank}: resuming at step 9",
            f"attempt 2 rank {rank}: resuming at step 12",
        ]


@pytest.mark.parametrize("run", ["chains", "data"])
def test_nothing_is_lost(survived, run):
    assert [one[run] for one in survived] == [[], []]


def test_the_posterior_of_all_ranks_is_that_of_one(survived, wreck):
    saved = Posterior.load(wreck / "chains saved", network())
    assert broken_off.differences(saved, broken_off.sample(None)) == []


@pytest.mark.parametrize("number", ["four", "one"])
def test_two_processes_go_on_with_a_run_of_another_number(survived, number):
    assert [one[f"of {number}"] for one in survived] == [[], []]
