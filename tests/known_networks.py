"""Runs of networks that tests hold against their definitions elsewhere, without the comparisons at
the start of a run and the measurement at its end: these would be a large part of a short one."""

from __future__ import annotations

import pytest

from natural_langevin.execution.kernels.native import planner
from natural_langevin.run import temperature_probe
from natural_langevin.run.problem import data_checks


def not_checked_again(patch: pytest.MonkeyPatch) -> None:
    """Until the patch is undone: linear layers and activations alone."""
    patch.setattr(data_checks, "check_network", lambda *_: None)
    patch.setattr(data_checks, "check_statistics", lambda *_: None)
    patch.setattr(planner, "agrees", lambda *_: True)
    patch.setattr(temperature_probe, "after_run", lambda *_: None)
