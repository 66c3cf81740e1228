"""Checkpoints of four ranks: whole or not there, read by any number of ranks, refused together;
and SIGKILL of a worker under ``torchrun --max-restarts``: the run goes on, and nothing is lost."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
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
from natural_langevin.run.checkpoint import CheckpointError
from natural_langevin.run.sharded_checkpoint import ShardedCheckpoint
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
    for before, after, listing, names, size in values(found["round_trip"]):
        assert (before, after) == (None, 3)
        assert [n for n in listing if "/" not in n] == ["sharded-000002", "sharded-000003"]
        assert "sharded-000003/index.json" in listing
        parts = [n for n in listing if n.startswith("sharded-000003/part")]
        assert len(parts) == 4  # copies are shared out between the ranks that hold them
        whole = checkpoint_checks.tree(range(3), 3)
        numbers = sum(t.nbytes for t in torch.utils._pytree.tree_leaves(whole))
        assert numbers < size < numbers + 4 * 4096  # every copy once, and four headers
        assert len([n for n in names if n.startswith("chain ")]) == 3 * 8
        assert len(names) == 3 * 8 + 3


def test_fewer_ranks_read_it(found):
    assert values(found["other_numbers_of_ranks"]) == [[3, 3], [3, None], [None, None], [None] * 2]


def test_one_process_reads_and_goes_on(found, folder):
    values(found["round_trip"])
    alone = join("cpu")
    assert checkpoint_checks.loaded(alone, folder / "round trip") == 3
    checkpoint_checks.saved(alone, folder / "round trip", 4)
    assert checkpoint_checks.loaded(alone, folder / "round trip") == 4


def test_what_one_process_wrote_is_read_by_four(found):
    for single, sharded, first, second in values(found["of_one_process"]):
        assert (single, sharded) == (5, 7)
        assert first == ["checkpoint.safetensors", "previous.safetensors", "sharded-000001"]
        assert second == ["sharded-000001", "sharded-000002"]


def test_damage_that_two_ranks_see_sends_all_to_the_checkpoint_before(found):
    assert values(found["damaged"]) == [[1, 1]] * 4
    assert "cannot read part-" in the_error(found["all_damaged"], "CheckpointError")
    good = ["sharded-000001", "sharded-000003"]
    assert values(found["two_good_ones_stay"]) == [[good, True]] * 4


def test_another_run_is_refused_on_all_ranks(found):
    text = the_error(found["another_run"], "CheckpointError")
    assert "another run: seed, step_size differ (seed: 1 there, 2 here)" in text


def test_a_disk_that_is_full_at_one_rank(found):
    text = the_error(found["full_disk_at_one_rank"], "WriteError")
    assert "File too large (rank 2). The checkpoint before it is intact" in text
    for before, after, left, names in values(found["after_the_full_disk"]):
        assert (before, after) == (1, 3)
        assert left[0] == "sharded-000001"
        assert names == ["sharded-000001", "sharded-000002"]


def test_a_folder_that_cannot_be_made(found):
    text = the_error(found["no_folder"], "WriteError")
    assert "cannot write checkpoints to" in text
    assert "Give another folder" in text


def test_a_folder_that_is_not_shared(found):
    text = the_error(found["folder_not_shared"], "CheckpointError")
    assert "ranks [3] do not see the folder" in text


def test_half_a_checkpoint_is_none(found):
    assert values(found["left_by_the_dead"]) == [[1, ["sharded-000001"]]] * 4


def test_one_process_goes_on_with_a_run_of_four(found, folder, tmp_path):
    assert values(found["run_broken_off"]) == [["sharded-000002", "sharded-000003"]] * 4
    shutil.copytree(folder / "broken off", tmp_path / "run")
    alone = broken_off.sample(None, checkpoint=tmp_path / "run")
    assert broken_off.differences(alone, broken_off.sample(None)) == []


def test_samples_in_files_are_gone_on_with_by_the_same_number_of_ranks(found, folder):
    assert values(found["run_in_files"]) == [[]] * 4
    with pytest.raises(
        CheckpointError, match=r"each of 4 processes.*there are 1 now: continue with 4"
    ):
        broken_off.sample(None, checkpoint=folder / "with draws", store=folder / "elsewhere")


@pytest.mark.parametrize(
    "index", [b"", b"[]", b"{}", b'{"format": 1}', b'{"format": 1, "config": {}, "tensors": 3}',
              b'{"format": 1, "config": {"seed": 1, "chains": 3}, "tensors": {"x": ["../a", 3]}}'],
)  # fmt: skip
def test_an_index_that_is_none(tmp_path, index):
    alone = join("cpu")
    checkpoint_checks.saved(alone, tmp_path, 1)
    (tmp_path / "sharded-000001" / "index.json").write_bytes(index)
    with pytest.raises(CheckpointError):
        checkpoint_checks.loaded(alone, tmp_path)


def test_at_every_moment_one_whole_checkpoint_is_there(tmp_path):
    """The folder as it is after every line of the third save that changes it."""
    alone, run = join("cpu"), tmp_path / "run"
    checkpoint = checkpoint_checks.saved(alone, run, 1, 2)
    seen, moments = {}, []

    def look(frame, event, argument):
        now = {str(p): (p.stat().st_size, p.stat().st_mtime_ns) for p in run.rglob("*")}
        if now != seen:
            seen.clear()
            seen.update(now)
            moments.append(shutil.copytree(run, tmp_path / f"moment {len(moments)}"))
        return look

    before = sys.gettrace()
    sys.settrace(lambda frame, *_: look if PACKAGE in frame.f_code.co_filename else None)
    try:
        checkpoint.save(checkpoint_checks.tree(range(3), 3))
    finally:
        sys.settrace(before)
    found = [checkpoint_checks.loaded(alone, moment) for moment in moments]
    assert len(found) > 8
    assert found == sorted(found)
    assert set(found) == {2, 3}


def test_another_dtype_is_refused(tmp_path):
    alone = join("cpu")
    checkpoint_checks.saved(alone, tmp_path, 1)
    like = checkpoint_checks.tree(range(3), 1)
    like["collector"]["samples"]["0.weight"] = like["collector"]["samples"]["0.weight"].double()
    with pytest.raises(CheckpointError, match=r"float32.*should be torch\.float64"):
        ShardedCheckpoint(tmp_path, checkpoint_checks.CONFIG, alone, range(3)).load(like)


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
    assert "parts.py" in notes[1] or "tensorfile.py" in notes[1] or "atomic.py" in notes[1]
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
