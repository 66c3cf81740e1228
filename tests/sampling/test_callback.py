"""A run is shown while it is under way, to a function or to TensorBoard."""

from __future__ import annotations

import sys
import types

import pytest
import torch

import small_run
from natural_langevin import dynamics
from natural_langevin.integrations.tensorboard import TensorBoard
from natural_langevin.run.look import Look

RUN = {"batch_size": 20, "progress": False}


def looks(**options) -> list[Look]:
    seen: list[Look] = []
    sampler = small_run.sampler(**options)
    sampler.sample(small_run.data(), 120, burn_in=20, thin=10, callback=seen.append, **RUN)
    return seen


def test_every_look_is_shown() -> None:
    seen = looks()
    assert [one.step for one in seen] == [50, 100, 120]
    assert [one.kept for one in seen] == [3, 8, 10]
    assert {one.steps for one in seen} == {120}
    assert all(one.loss.shape == (2,) and torch.isfinite(one.loss).all() for one in seen)
    assert all(one.acceptance is None for one in seen)
    assert seen[-1].diverged.tolist() == [-1, -1]


def test_looking_changes_nothing_and_the_temperature_is_measured_when_read() -> None:
    def watch(look: Look) -> None:
        readings.append(look.temperature)

    readings: list[object] = []
    options = {"steps": 60, "thin": 10, **RUN}
    plain = small_run.sampler(chains=4).sample(small_run.data(), **options)
    watched = small_run.sampler(chains=4).sample(small_run.data(), callback=watch, **options)
    assert torch.equal(plain.samples["0.weight"], watched.samples["0.weight"])
    assert len(readings) == 2
    for reading in readings:
        assert not reading.differs_from(1.0)  # type: ignore[attr-defined]


def test_acceptance_is_shown_where_there_is_one() -> None:
    seen: list[Look] = []
    sampler = small_run.sampler(dynamics=dynamics.Adjusted(), step_size=0.02)
    sampler.sample(
        small_run.data(), 30, burn_in=10, batch_size=60, callback=seen.append, progress=False
    )
    last = seen[-1].acceptance
    assert last is not None
    assert ((last > 0) & (last <= 1)).all()


def test_what_is_no_function_is_refused() -> None:
    with pytest.raises(TypeError, match="callback must be a function of a Look, got 3"):
        small_run.sampler().sample(small_run.data(), 10, callback=3, **RUN)


def test_tensorboard_is_written(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    written: list[tuple[str, float, int]] = []
    flushed: list[bool] = []

    class SummaryWriter:
        """What TensorBoard's own has of this."""

        def __init__(self, folder: str) -> None:
            assert folder == str(tmp_path)

        def add_scalar(self, name: str, value: float, step: int) -> None:
            written.append((name, value, step))

        def flush(self) -> None:
            flushed.append(True)

    module = types.SimpleNamespace(SummaryWriter=SummaryWriter)
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
    board = TensorBoard(tmp_path, temperature_every=2)
    small_run.sampler().sample(small_run.data(), 120, callback=board, **RUN)
    assert {name for name, _, _ in written} == {
        "loss/chain 0",
        "loss/chain 1",
        "kept",
        "temperature",
    }
    assert [step for name, _, step in written if name == "temperature"] == [100]
    assert flushed == [True]


def test_a_missing_tensorboard_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(ImportError, match="pip install tensorboard"):
        TensorBoard(tmp_path)
    with pytest.raises(ValueError, match="temperature_every must be 0 or more, got -1"):
        TensorBoard(tmp_path, temperature_every=-1)
