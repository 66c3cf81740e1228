"""A run says in one line which way it is run and, where another is faster, why not that one."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import nn

from natural_langevin import Langevin, likelihoods, preconditioners


@pytest.mark.parametrize(
    ("activation", "options", "said"),
    [
        (nn.Tanh, {}, "this way: native"),
        (
            nn.Softsign,
            {},
            "does not support this run: a network that is not a chain of linear layers",
        ),
        (nn.Tanh, {"compile": False}, "eager, since compile=False"),
        (nn.Tanh, {"compile": True}, "compiled$"),
        (
            nn.Tanh,
            {"preconditioner": preconditioners.KroneckerFisher()},
            "does not support this run: the metric KroneckerFisher",
        ),
    ],
)
def test_one_line(
    activation: type[nn.Module], options: dict[str, Any], said: str,
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr("natural_langevin.execution.compiled.BACKEND", "eager")
    x = torch.randn(40, 3)
    network = nn.Sequential(nn.Linear(3, 4), activation(), nn.Linear(4, 2))
    sampler = Langevin(network, likelihoods.Categorical(), step_size=1e-3, chains=2, **options)
    with caplog.at_level("INFO", logger="natural_langevin"):
        sampler.sample((x, (x.sum(1) > 0).long()), 8, batch_size=20, progress=False)
    (line,) = [r.getMessage() for r in caplog.records if "steps are run" in r.getMessage()]
    assert re.search(said, line)


def test_a_gpu_that_is_there_and_not_taken(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    x = torch.randn(10, 700)
    network = nn.Sequential(nn.Linear(700, 30), nn.Tanh(), nn.Linear(30, 2))
    sampler = Langevin(network, likelihoods.Categorical(), step_size=1e-3, chains=1)
    with caplog.at_level("INFO", logger="natural_langevin"):
        sampler.sample((x, (x.sum(1) > 0).long()), 2, batch_size=5, progress=False)
    assert 'on the CPU, where the model is; device="cuda" uses the GPU' in caplog.text
