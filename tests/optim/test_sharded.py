"""Networks that no process holds as a whole: FSDP2 on two processes, in one launch."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import (
    get_model_state_dict,
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)

from optim.sharded_worker import METRICS, Gated, Plain, network, optimizer_of, run

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "distributed"))
import launch  # noqa: E402


@pytest.fixture(scope="module")
def launched(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """What the processes said, and the folder they wrote to."""
    folder = tmp_path_factory.mktemp("sharded")
    worker = HERE / "sharded_worker.py"
    with launch.started(worker, folder, ranks=2, imported=("optim.sharded_worker",)) as running:
        return running.finish(timeout=600), folder


def test_a_sharded_run_equals_that_of_one_process(launched: tuple[str, Path]) -> None:
    """The workers compare every metric over ten steps, and assert the refusals."""
    said = launched[0]
    for name in METRICS:
        assert f", {name}:" in said
    assert f"{Plain.__name__}, quasi-diagonal:" in said
    assert f"{Gated.__name__}, quasi-diagonal:" in said
    assert "means of every weight:" in said
    assert "rank 0 is done" in said
    assert "rank 1 is done" in said


@pytest.mark.filterwarnings("ignore")  # torch's own, of a checkpoint without a process group
def test_its_checkpoint_is_read_by_one_process(launched: tuple[str, Path]) -> None:
    model = network(Gated)
    optimizer = optimizer_of(model, "quasi-diagonal")
    optimizer.init_state()
    state = {
        "model": get_model_state_dict(model),
        "optimizer": get_optimizer_state_dict(model, optimizer),
    }
    dcp.load(state, checkpoint_id=launched[1] / "checkpoint", no_dist=True)
    model.load_state_dict(state["model"])
    set_optimizer_state_dict(model, optimizer, state["optimizer"])
    alone = network(Gated)
    reference = optimizer_of(alone, "quasi-diagonal")
    run(alone, reference, 10, None)
    assert optimizer.steps == reference.steps == 10
    for one, its in ((model, optimizer), (alone, reference)):
        run(one, its, 3, None)
    for k, p in reference.sampled().items():
        torch.testing.assert_close(optimizer.sampled()[k], p, rtol=1e-12, atol=1e-12)
        expected, found = reference.state[p], optimizer.state[optimizer.sampled()[k]]
        assert expected.keys() == found.keys() >= {"mean", "second"}
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.thorough
def test_killed_three_times_it_ends_with_the_same_bits(tmp_path, record_property) -> None:
    """In a step, in a backward pass and in a checkpoint, of which the one before it serves."""
    worker = HERE / "killed_shards.py"
    with launch.started(
        worker, tmp_path, ranks=2, max_restarts=3, imported=("optim.killed_shards",)
    ) as running:
        running.finish(timeout=600)
    notes = [(tmp_path / f"killed-{attempt}").read_text() for attempt in range(3)]
    assert notes[0].split(": ")[1].endswith(tuple("0123456789")), notes  # a line of ours
    assert notes[1:] == ["backward", "checkpoint"]
    record_property("cases", len(notes))
    for rank in (0, 1):
        found = json.loads((tmp_path / f"found-{rank}.json").read_text())
        # Checkpoints after 3; after 3 again, since the second attempt died in its second step; and
        # the one after 6 was never whole.
        assert found == {"attempts": 4, "from": 3, "same": True}
