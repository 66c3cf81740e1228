"""The optimizer under DistributedDataParallel: ranks are one run, or all of them are told why not.

One launch of two processes; every check is a scenario that drifted apart, or hung, once."""

from __future__ import annotations

import launch
import pytest

DIFFER = {
    "seed": "seed is 3 on rank 0, 4 on rank 1",
    "chain": "chain is 0 on rank 0, 1 on rank 1",
    "num_data": "num_data is 60 on rank 0, 61 on rank 1",
    "temperature": "temperature is [1.0] on rank 0, [0.5] on rank 1",
    "lr": "lr is [0.001] on rank 0, [0.002] on rank 1",
    "likelihood": "mean_rate is",
    "lr_later": "lr is [0.001] on rank 0, [0.0005] on rank 1",
    "parameters": "the check sum of '2.weight' is",
}
OTHERS = (
    "alike", "forward_between", "raises_in_step", "raises_in_closure", "goes_on", "not_finite",
    "loss_scales", "stays_away",
)  # fmt: skip


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    return launch.checks(
        "optimizer_checks", [*DIFFER, *OTHERS], ranks=2, folder=folder, timeout=300,
        imported=("optimizer_checks",),
        environment={"NATURAL_LANGEVIN_TIMEOUT": "250"},
    )  # fmt: skip


@pytest.mark.parametrize("what", DIFFER)
def test_ranks_that_differ_are_told_so_on_all_ranks(found, what):
    for outcome in found[what]:
        assert outcome.kind == "GroupError", outcome
        assert DIFFER[what] in outcome.error
        assert "must be one run" in outcome.error
        assert len(outcome.error) < 2000


def test_ranks_that_are_alike_stay_so(found):
    for name in ("alike", "forward_between", "goes_on", "loss_scales"):
        first, second = (outcome.value for outcome in found[name])
        assert first, found[name]
        assert first == second
    assert found["loss_scales"][0].value == found["alike"][0].value


@pytest.mark.parametrize(
    ("name", "words"),
    [("raises_in_step", "no parameter has a gradient"), ("raises_in_closure", "no shard 17")],
)
def test_a_rank_that_raises_is_named_to_the_others(found, name, words):
    other, own = found[name]
    assert own.kind != "GroupError"
    assert words in own.error
    assert other.kind == "GroupError"
    assert other.error.startswith("rank 1 failed: ")
    assert words in other.error
    assert other.seconds < 100


def test_a_gradient_that_is_not_finite_stops_all(found):
    assert [outcome.kind for outcome in found["not_finite"]] == ["DivergenceError"] * 2


def test_a_rank_that_does_not_come_is_named_within_the_time_limit(found):
    outcome = found["stays_away"][0]
    assert outcome.kind == "GroupError"
    assert "rank 1 of 2 did not arrive at 'step 1 of the optimizer'" in outcome.error
    assert outcome.seconds < 100  # the limit is 1, and that of all others 250
