"""Chains and minibatches spread over processes: the same draws, the same answers as in one."""

from __future__ import annotations

import launch
import pytest
from parallel_checks import CASES, FEATURES

TWO = [
    "shared_minibatches", "loader", "single_steps", "spread_chains", "chains_in_a_folder",
    "a_checkpoint", "auto_step_size", "whole_recipe", "diverging", "all_diverging", "other_data",
    "other_weights", "bad_data_at_one", "other_step_size", "wrong_layout", "after_all_that",
    "train", "exchange_compiled", "exchanged", "seconds",
]  # fmt: skip
FOUR = ["spread_chains", "loader", "single_steps"]


def launched(folder, names: list[str], ranks: int) -> dict[str, list[launch.Outcome]]:
    return launch.checks(
        "parallel_checks", names, ranks=ranks, folder=folder, timeout=840,
        environment={"NATURAL_LANGEVIN_TIMEOUT": "800"},
        imported=("parallel_checks", "matplotlib.backends.backend_agg"),
    )  # fmt: skip


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    return launched(tmp_path_factory.mktemp("two"), TWO, 2)


@pytest.fixture(scope="module")
def four(tmp_path_factory):
    return launched(tmp_path_factory.mktemp("four"), FOUR, 4)


def values(outcomes: list[launch.Outcome]) -> list:
    assert [one.error for one in outcomes] == [None] * len(outcomes)
    return [one.value for one in outcomes]


def the_error(outcomes: list[launch.Outcome], kind: str = "GroupError") -> str:
    """One error, the same at every rank."""
    assert {one.kind for one in outcomes} == {kind}, outcomes
    assert len({one.error for one in outcomes}) == 1, outcomes
    return str(outcomes[0].error)


@pytest.mark.parametrize("case", [*CASES, *FEATURES])
def test_a_shared_minibatch_is_the_same_minibatch(two, case):
    limit = 1e-2 if case == "autocast" else 1e-10
    (found,) = (one[case] for one in values(two["shared_minibatches"]) if case in one)
    assert found < limit


@pytest.mark.parametrize("processes", ["two", "four"])
def test_batches_of_a_loader_are_shared_too(processes, request):
    assert all(d < 1e-12 for d in values(request.getfixturevalue(processes)["loader"]))


def test_processes_whose_clocks_differ_take_the_same_steps(two):
    """They refused each other's, and with a target waited for each other for ever."""
    one, other = values(two["seconds"])
    assert one == other
    assert [limit for _, limit, _ in one] == ["seconds", "seconds"]
    assert all(draws >= 4 for _, _, draws in one)


def test_single_steps(two, four):
    for found in (two["single_steps"], two["after_all_that"], four["single_steps"]):
        assert all(d < 1e-12 for d in values(found))


def test_swaps_between_processes_are_those_within_one(two):
    for found in values(two["exchanged"]):
        assert found["draws"] < 1e-12
        assert found["same"]
        assert found["pooled"] == [0]
        assert all(0 < rate <= 1 for rate in found["rates"])


@pytest.mark.parametrize(
    ("processes", "own"),
    [("two", [[0, 1], [2]]), ("four", [[0, 1], [0, 1], [2], [2]])],
)
def test_chains_are_the_same_wherever_they_run(processes, own, request):
    """Four processes for three chains: two groups of chains, whose minibatches two share."""
    found = values(request.getfixturevalue(processes)["spread_chains"])
    assert [one["own"] for one in found] == own
    for one in found:
        del one["answers"]["rhat"]  # by ranks: probabilities equal but for rounding may swap
        assert one["draws"] < 1e-12
        assert one["heat"] == (processes == "two")
        assert max(one["answers"].values()) < 1e-9, one["answers"]


@pytest.mark.parametrize("processes", ["two", "four"])
def test_what_processes_save_one_process_loads(processes, request):
    for one in values(request.getfixturevalue(processes)["spread_chains"]):
        assert max(one["loaded"], one["loaded means"]) < 1e-12
        assert max(one["answers of loaded"].values()) < 1e-12
        assert one["files"] == one["files again"] == 3
        assert "Posterior.load" in one["refused"][0]
        assert "there are 3 chains, got chain=7" in one["refused"][1]


def test_samples_on_the_disk_and_a_likelihood_that_learns(two):
    for one in values(two["chains_in_a_folder"]):
        assert one["draws"] < 1e-12
        spread, alone, loaded = one["sigma"]
        assert spread == loaded == pytest.approx(alone, rel=1e-12)


def test_a_run_goes_on_from_its_checkpoint(two):
    for one in values(two["a_checkpoint"]):
        assert one["bits"]
        assert one["draws"] < 1e-12


def test_the_step_size_is_chosen_as_in_one_process(two):
    """By a pilot of the first two chains at every process, and once per run."""
    for one in values(two["auto_step_size"]):
        alone, spread, again = one["choices"]
        assert alone == pytest.approx(spread, rel=1e-9)
        assert spread == again
        assert one["bits"]
        assert one["draws"] < 1e-9  # grown from the choice's rounding
        assert one["shared minibatches"][0] == one["shared minibatches"][1]


def test_a_run_by_the_recipe_has_the_bits_of_one_process(two):
    """All that it decides, the draws of both its parts, and what they predict; with draws and
    checkpoints in folders too."""
    for one in values(two["whole_recipe"]):
        assert one["decided"]
        assert one["plans"] == one["bits"] == [True, True]
        assert one["predictions"] == [0.0, 0.0]


def test_a_chain_that_diverges(two):
    for one in values(two["diverging"]):
        assert one["diverged"][0] == one["diverged"][1]
        assert one["diverged"][0][:2] == [-1, -1]
        assert one["diverged"][0][2] >= 0
        assert one["difference"] < 1e-12


def test_all_chains_diverging_ends_the_run_everywhere(two):
    assert [one.kind for one in two["all_diverging"]] == ["DivergenceError"] * 2


def test_other_data_at_one_process(two):
    error = the_error(two["other_data"])
    assert "do not agree on the run: data is" in error
    assert "on rank 1" in error


def test_other_weights_at_one_process(two):
    assert "do not agree on the run: model is" in the_error(two["other_weights"])


def test_another_step_size_at_one_process(two):
    assert "step_size is" in the_error(two["other_step_size"])


def test_bad_data_at_one_process_is_an_error_at_all(two):
    first, second = two["bad_data_at_one"]
    assert (first.kind, second.kind) == ("GroupError", "ValueError")
    assert "rank 1 failed at 'preparing the run': ValueError: x holds NaN" in str(first.error)


def test_a_layout_for_another_number_of_processes(two):
    error = the_error(two["wrong_layout"])
    assert "needs 15 processes and there are 2" in error
    assert "--nproc-per-node 15" in error


def test_the_compiler_keeps_the_exchange(two):
    assert all(difference < 1e-12 for difference in values(two["exchange_compiled"]))


@pytest.mark.thorough
def test_the_compiled_step_exchanges_too(tmp_path):
    """Compiled code rounds its noise differently, by a few parts in a million."""
    for one in values(launched(tmp_path, ["compiled"], 2)["compiled"]):
        assert (one["compiled"], one["warned"]) == (1, [])
        assert one["difference"] < 1e-6


def test_train_under_torchrun(two):
    """One process prints and writes; all of them refuse to write over what is there."""
    first, second = values(two["train"])
    assert (first["printed"], second["printed"]) == (True, False)
    assert first["files"] == second["files"] == ["quality.json", "run.json"]
    assert first["refused"] == second["refused"] == 2
    assert first["why"]
    assert second["why"]
