"""50,000 steps and 500 saves: neither memory nor descriptors grow."""

import resource
from pathlib import Path

import pytest

import small_run
from natural_langevin import Posterior

pytestmark = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs Linux's /proc")

MIB = 1 << 20


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def resident() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


@pytest.mark.parametrize("runs", [2, pytest.param(10, marks=pytest.mark.thorough)])
def test_runs_of_five_thousand_steps(record_property, runs):
    """The first makes what stays."""
    small_run.sample(5_000, burn_in=4_990)
    before, open_before = resident(), descriptors()
    for _ in range(runs - 1):
        small_run.sample(5_000, burn_in=4_990)
    record_property("cases", runs)
    assert descriptors() == open_before
    assert resident() - before < 8 * MIB


@pytest.mark.parametrize("saves", [40, pytest.param(500, marks=pytest.mark.thorough)])
def test_saves(tmp_path, record_property, saves):
    """Into one folder, each of them read again."""
    posterior = small_run.sample()

    def save() -> None:
        posterior.save(tmp_path / "saved")
        Posterior.load(tmp_path / "saved", small_run.network())

    for _ in range(saves // 10):
        save()
    before, open_before = resident(), descriptors()
    for _ in range(saves - saves // 10):
        save()
    record_property("cases", saves)
    assert descriptors() == open_before
    assert resident() - before < 8 * MIB
    assert len(list((tmp_path / "saved").iterdir())) == 3
