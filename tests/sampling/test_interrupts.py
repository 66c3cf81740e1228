"""Ctrl-C in the last piece of a run: it counts, however many steps are done by then."""

from __future__ import annotations

import math
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

import small_run
from natural_langevin import Langevin, Posterior, likelihoods, models, priors
from natural_langevin.run import until
from natural_langevin.run.collector import SampleCollector
from natural_langevin.run.look import Look
from short_recipe import USUAL, changed

pytestmark = pytest.mark.usefixtures("interruptible")


def first_part_of_open_length(
    monkeypatch: pytest.MonkeyPatch, callback: Callable[[Look], None] | None = None
) -> Posterior:
    """A run whose first part, of 200 steps, would be followed by another."""
    settings = changed(
        end={"first_steps": 200}, length={"fewest": 600},
        cost={"usual": replace(USUAL.cost.usual, relaxations=1)},
    )  # fmt: skip
    monkeypatch.setattr(until, "too_short", lambda *_: ("R-hat", math.inf))
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(150, 2, generator=generator)
    net = models.mlp(2, 1, (32,), activation=nn.Tanh)
    prior = priors.Gaussian(1.0)
    sampler = Langevin(net, likelihoods.Gaussian(0.3), prior=prior, chains=2, recipe=settings)
    return sampler.sample((x, x[:, :1].sin()), progress=False, callback=callback)


def interrupt(look: Look) -> None:
    """After the last step; by then the loop has asked for signals of this piece."""
    if look.step == look.steps:
        signal.raise_signal(signal.SIGINT)


def test_the_next_part_does_not_start(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    keep = SampleCollector.keep

    def interrupted(self: SampleCollector, state: object) -> None:
        keep(self, state)  # type: ignore[arg-type]
        if int(state.step) == 200:  # type: ignore[attr-defined]
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(SampleCollector, "keep", interrupted)
    found = first_part_of_open_length(monkeypatch)
    assert "interrupted at step 200 of 200" in caplog.text
    assert found.config["limit"] == "interrupt"
    assert found.config["steps"] == 200
    assert "steps_before" not in found.config


def test_nor_where_the_signal_comes_after_the_last_step(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    found = first_part_of_open_length(monkeypatch, interrupt)
    assert "interrupted at step 200 of 200, the last one" in caplog.text
    assert f"has all {found.draws} draws" in caplog.text
    assert found.config["limit"] == "interrupt"
    assert "steps_before" not in found.config


def test_with_a_checkpoint_it_ends_the_program_and_nothing_is_lost(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(KeyboardInterrupt):
        small_run.sample(checkpoint=tmp_path, callback=interrupt)
    caplog.clear()
    with caplog.at_level("INFO"):
        again = small_run.sample(checkpoint=tmp_path)
    assert f"resuming at step {again.config['steps']}" in caplog.text
    for name, samples in small_run.sample().samples.items():
        assert samples.equal(again.samples[name])
