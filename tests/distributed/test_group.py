"""Ranks that disagree, fail or stay away: an error on all, soon, that says who and where."""

from __future__ import annotations

import math

import launch
import pytest
import torch
import torch.distributed as dist

from natural_langevin.distributed.group import Group, GroupError
from natural_langevin.distributed.join import join

CHECKS = [
    "joining", "a_group_of_the_script", "agreeing", "disagreeing", "a_setting_is_missing",
    "one_rank_raises", "one_rank_raises_before_a_meeting", "after_errors_all_goes_on",
    "different_ways", "nobody_comes", "broken_stays_broken", "an_error_in_a_step",
    "a_collective_fails",
]  # fmt: skip


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = tmp_path_factory.mktemp("group")
    return launch.checks(
        "group_checks", CHECKS, ranks=2, folder=folder,
        environment={"NATURAL_LANGEVIN_TIMEOUT": "200"}, imported=("group_checks",),
    )  # fmt: skip


def errors(outcomes: list[launch.Outcome], kind: str = "GroupError") -> list[str]:
    assert [one.kind for one in outcomes] == [kind] * len(outcomes), outcomes
    return [str(one.error) for one in outcomes]


def test_joining(found):
    for rank, one in enumerate(found["joining"]):
        assert one.value == {
            "same": True,
            "backend": "gloo",
            "sum": 1.0,
            "values": ["from 0", "from 1"],
            "rank": [rank, 2, rank == 0],
        }


def test_a_group_that_the_script_initialised_is_used(found):
    expected = [[False, rank, ["0", "1"]] for rank in (0, 1)]
    assert [one.value for one in found["a_group_of_the_script"]] == expected


def test_equal_settings_pass(found):
    assert [one.error for one in found["agreeing"]] == [None, None]


def test_different_settings_are_the_same_error_on_all_ranks(found):
    first, second = errors(found["disagreeing"])
    assert first == second
    assert "step_size is 0.002 on rank 0, 0.001 on rank 1" in first
    assert "seed" not in first
    first, second = errors(found["a_setting_is_missing"])
    assert first == second
    assert "clip is 3 on rank 0, missing on rank 1" in first


def test_one_rank_raising_is_an_error_on_all(found):
    other, own = found["one_rank_raises"]
    assert (own.kind, own.error) == ("FileNotFoundError", "there is no train.csv")
    assert other.kind == "GroupError"
    assert other.error == (
        "rank 1 failed at 'preparing the data': FileNotFoundError: there is no train.csv"
    )
    own, other = found["one_rank_raises_before_a_meeting"]
    assert (own.kind, own.error) == ("ValueError", "no data")
    assert other.error == "rank 0 failed at 'preparing': ValueError: no data"
    assert max(own.seconds, other.seconds) < 60


def test_the_group_is_whole_after_errors_that_all_know(found):
    assert [one.value for one in found["after_errors_all_goes_on"]] == [["0", "1"]] * 2


def test_ranks_at_different_places(found):
    first, second = errors(found["different_ways"])
    assert first == second
    assert "rank 0 at 'the end', rank 1 at 'the checkpoint'" in first


def test_a_rank_that_never_arrives(found):
    waited, fine = found["nobody_comes"]
    assert fine.error is None
    assert waited.kind == "GroupError"
    assert "rank 1 of 2 did not arrive at 'the first checkpoint' within 1 seconds" in waited.error
    assert "NATURAL_LANGEVIN_TIMEOUT" in waited.error
    assert 1 <= waited.seconds < 60
    again = found["broken_stays_broken"][0].error
    assert "did not arrive at 'one'" in again
    assert "start the run again" in again


def test_an_error_before_a_collective(found):
    other, own = found["an_error_in_a_step"]
    assert (own.kind, own.error) == ("FloatingPointError", "not a number")
    assert other.kind == "GroupError"
    assert "rank 1 of 2 did not arrive at 'the steps up to 50' (Timed out" in other.error
    assert "rank 1 was at 'the steps up to 50' and failed there (Floating" in other.error


def test_a_collective_that_fails(found):
    waited, elsewhere = found["a_collective_fails"]
    assert waited.kind == elsewhere.kind == "GroupError"
    assert "rank 0 failed at 'the sum of the gradients'" in elsewhere.error
    assert elsewhere.seconds < 60  # it is told, and does not wait out its 200 seconds
    assert "rank 1 of 2 did not arrive at 'the sum of the gradients'" in waited.error
    assert "rank 1 was at 'the checkpoint at step 50'" in waited.error
    assert waited.seconds < 60


def test_alone_everything_is_trivial(monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    group = join("cpu")
    assert (group.rank, group.world, group.first) == (0, 1, True)
    group.agree("the settings", {"seed": 0})
    assert group.exchange("here", "me") == ["me"]
    with pytest.raises(KeyError), group.together("something"):
        raise KeyError("lost")
    group.barrier("afterwards")
    assert not dist.is_initialized()


@pytest.mark.parametrize("value", ["soon", "-1", "0", "inf", "nan", ""])
def test_a_wrong_timeout_is_refused(monkeypatch, value):
    monkeypatch.setenv("NATURAL_LANGEVIN_TIMEOUT", value)
    with pytest.raises(ValueError, match="NATURAL_LANGEVIN_TIMEOUT must be a"):
        join("cpu")
    if value != "soon" and value:
        with pytest.raises(ValueError, match="timeout must be a positive number"):
            join("cpu", timeout=float(value))


def test_half_a_launch_is_refused(monkeypatch):
    monkeypatch.setenv("RANK", "0")
    for name in ("WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(GroupError, match="WORLD_SIZE, MASTER_ADDR, MASTER_PORT not"):
        join("cpu")


def test_more_processes_than_gpus(monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", "3")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(GroupError, match=r"GPU 3, and the machine has 2.*--nproc-per-node 2"):
        join("cuda")


def test_many_ranks_are_named_briefly():
    group = Group(dist.HashStore(), 0, 512, torch.device("cpu"), 0.01)
    with pytest.raises(GroupError, match=r"^ranks 1 to 511 of 512 did not arrive at 'x'") as caught:
        group.barrier("x")
    assert len(str(caught.value)) < 500
    assert math.isclose(group.timeout, 0.01)
