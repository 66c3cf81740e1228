"""One plan, one run: with draws in memory or in a folder, with checkpoints or without, killed and
gone on with in any phase, the same bits come out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from natural_langevin import Langevin, Plan, Posterior, likelihoods, models
from natural_langevin.recipe import prior_trial, step_size
from natural_langevin.run import descent, until
from natural_langevin.run.checkpoint import CheckpointError
from natural_langevin.run.collector import SampleCollector
from short_recipe import SHORT, changed


class KilledError(BaseException):
    """The process is gone."""


def too_short(so_far: Posterior, *_: Any) -> str:
    """As many parts as there may be: two of them are burn-in."""
    return "R-hat"


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(until, "too_short", too_short)


def data() -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(0)
    x = torch.randn(60, 2, generator=g)
    y = x[:, :1].sin() + 0.1 * torch.randn(60, 1, generator=g)
    return x, 1000 * y + 50  # of a size that is put into standard units


def sampler() -> Langevin:
    network = models.mlp(2, 1, (32,), activation=nn.Tanh)  # of more weights than rows: two parts
    recipe = changed(SHORT, length={"unmixed": 2}, end={"first_part": 10, "first_steps": 60})
    return Langevin(network, likelihoods.Gaussian("rmse"), chains=2, recipe=recipe)


def run(**options: Any) -> Posterior:
    return sampler().sample(data(), progress=False, **options)


def assert_same(one: Posterior, other: Posterior) -> None:
    for name in ("steps", "steps_before", "burn_in", "thin", "batch_size", "units"):
        assert one.config.get(name) == other.config.get(name), name
    assert one.config.get("noise_widths") == other.config.get("noise_widths")
    assert one.plan == other.plan
    for name, value in one.samples.items():
        assert torch.equal(value, other.samples[name][...]), name
    assert all(torch.equal(v, other.last[k]) for k, v in one.last.items())
    assert torch.equal(one.predict(data()[0]).mean, other.predict(data()[0]).mean)


@pytest.fixture(scope="module")
def plain() -> Posterior:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(until, "too_short", too_short)
        found = run()
    assert len(found.plan.lengths()) == 3
    assert found.config["steps_before"] == 60 + 300
    assert found.plan.descent
    assert found.plan.units is not None
    assert "prior" in found.plan.reasons
    return found


@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.parametrize("saved", [False, True])
def test_wherever_draws_and_checkpoints_go(
    plain: Posterior, tmp_path: Path, stored: bool, saved: bool
) -> None:
    options: dict[str, Any] = {"store": tmp_path / "draws"} if stored else {}
    options |= {"checkpoint": tmp_path / "run", "every": 50} if saved else {}
    assert_same(plain, run(**options))
    if stored:  # draws that were burn-in take no room
        assert len([*(tmp_path / "draws").glob("draws-*")]) == 1


def test_a_plan_is_run_as_it_is(plain: Posterior, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = sampler().plan(data())
    assert plan == replace(plain.plan, extended=())
    monkeypatch.setattr(step_size, "by_curvature", None)  # nothing is searched for again
    assert_same(plain, run(plan=Plan.from_json(plan.to_json())))


def dies(of: Callable[..., Any], call: int) -> Callable[..., Any]:
    """The function, whose ``call``-th call kills the process."""
    calls = 0

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == call:
            raise KilledError
        return of(*args, **kwargs)

    return wrapped


@pytest.mark.parametrize(
    ("where", "what", "call", "stored"),
    [
        (step_size, "steepest", 2, True),  # in the pilot
        (prior_trial, "_try_out", 2, False),  # between two rounds of the trial
        (descent, "losses", -1, True),
        (SampleCollector, "keep", 3, False),
        (until, "too_short", 1, True),  # at the end of the first part
        (until, "too_short", 2, True),  # of the second
        (SampleCollector, "keep", -5, False),  # in the third
        pytest.param(SampleCollector, "keep", -5, True, marks=pytest.mark.thorough),
    ],
)
def test_killed_at_any_moment(
    plain: Posterior, tmp_path: Path, where: Any, what: str, call: int, stored: bool
) -> None:
    options: dict[str, Any] = {"checkpoint": tmp_path / "run", "every": 20}
    options |= {"store": tmp_path / "draws"} if stored else {}
    real = getattr(where, what)
    with pytest.MonkeyPatch.context() as patch:
        if call < 0:  # counted from the end
            counted: list[int] = []
            patch.setattr(where, what, lambda *a, **k: counted.append(1) or real(*a, **k))
            run()
            call += len(counted) + 1
        patch.setattr(where, what, dies(real, call))
        with pytest.raises(KilledError):
            run(**options)
    assert_same(plain, run(**options))


@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.parametrize("steps", [(20, 48, 90), (50, 100, 100)])
@pytest.mark.parametrize("sigma", ["rmse", 0.1])  # the native engine takes the second
def test_a_finished_run_goes_on_beyond_its_end(
    tmp_path: Path, steps: tuple[int, ...], stored: bool, sigma: str | float
) -> None:
    """With the bits of one that was as long from the start; again and again."""
    options: dict[str, Any] = {"batch_size": 20, "burn_in": 8, "thin": 4, "progress": False}
    folders: dict[str, Any] = {"checkpoint": tmp_path}
    folders |= {"store": tmp_path / "draws"} if stored else {}
    network = models.mlp(2, 1, (4,))

    def one() -> Langevin:
        return Langevin(network, likelihoods.Gaussian(sigma), step_size=1e-3, chains=2)

    for count in steps:
        found = one().sample(data(), count, **folders, **options)
    whole = one().sample(data(), steps[-1], **options)
    assert found.config["steps"] == whole.config["steps"] == steps[-1]
    for name, value in whole.samples.items():
        assert torch.equal(value, found.samples[name][...])
    assert torch.equal(whole.mean["0.weight"], found.mean["0.weight"])
    assert torch.equal(whole.trace, found.trace)
    with pytest.raises(CheckpointError, match="steps"):
        one().sample(data(), steps[-1] - 4, **folders, **options)
    for name, value in (("thin", 2), ("thin", 8), ("burn_in", steps[-1])):
        with pytest.raises(CheckpointError, match=name):
            one().sample(data(), steps[-1] + 16, **folders, **(options | {name: value}))


def test_a_part_of_open_length_ends_where_it_is_told_to(tmp_path: Path) -> None:
    first = run(checkpoint=tmp_path)
    longer = run(checkpoint=tmp_path, steps=1400)
    assert longer.config["steps"] == 1400 > first.config["steps"]
    assert longer.config["steps_before"] == first.config["steps_before"]
    for name, value in longer.samples.items():  # it is thinned alike, or further
        every = longer.config["thin"] // first.config["thin"]
        kept = first.samples[name][:, every - 1 :: every]
        assert torch.equal(value[:, : kept.shape[1]], kept)
