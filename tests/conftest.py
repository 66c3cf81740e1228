"""Fixtures shared by all tests: tiny networks, tiny data, a fixed seed.

torch is imported where it is used: the process that hands tests out to workers reads this file too,
and the workers wait for it."""

from __future__ import annotations

import functools
import gc
import logging
import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from torch import Tensor, nn

# The compiler need not try out, in every process, what the processor says of itself.
os.environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "1")

TESTS = Path(__file__).parent
#: What takes longest begins first, so that no worker is left with it at the end.
LONGEST = ("distributed", "experiments", "law", "statistics", "docs", "report")
#: Folders and files that ask what becomes of samples, not whether a run notices a wrong network.
KNOWN = {
    "law", "posterior", "sklearn_estimators", "tabular", "cli", "sampling", "run", "slt",
    "evidence", "metrics", "report", "experiments", "test_chains.py", "test_copies.py",
    "test_langevin.py", "test_random.py", "test_threads.py", "test_output_files.py",
    "test_leaks.py", "test_native.py", "test_native_convolutions.py", "test_native_threads.py",
}  # fmt: skip


@functools.cache
def below(path: Path, tests: Path = TESTS) -> tuple[str, ...]:
    """Folders and file below ``tests``, wherever the checkout lies; of other files none."""
    return path.relative_to(tests).parts if path.is_relative_to(tests) else ()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A stable sort: within a folder, and elsewhere, the order stays."""
    order = {name: place for place, name in enumerate(LONGEST)}
    last = len(order)
    items.sort(key=lambda item: min((order.get(p, last) for p in below(item.path)), default=last))


def pytest_sessionstart() -> None:
    """Collections of garbage that nobody asks for, after every 700 new objects, are rarer."""
    gc.set_threshold(500_000)


def pytest_collection_finish() -> None:
    """What was imported stays: collections of garbage, which many tests ask for, pass over it."""
    gc.collect()
    gc.freeze()


def pytest_sessionfinish() -> None:
    gc.unfreeze()


@pytest.fixture(autouse=True)
def _short_end(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of open length whose chains do not agree go on for a fifth of the usual steps, those of
    few weights to as many effective draws as others, but in thorough tests: what a test looks at is
    seen by then."""
    if request.node.get_closest_marker("thorough") is None:
        from natural_langevin.recipe import open_settings

        usual = open_settings.DEFAULT
        fewer = replace(
            usual, length=replace(usual.length, unmixed=1), cheap=None,
            step_size=replace(usual.step_size, ess=usual.end.ess),
        )  # fmt: skip
        monkeypatch.setattr(open_settings, "DEFAULT", fewer)


@pytest.fixture(autouse=True)
def _fixed_seed() -> None:
    """For the layers that tests make: the library itself never looks at the global generator."""
    import torch

    torch.default_generator.manual_seed(0)  # torch.manual_seed formats the stack for every device


@pytest.fixture(autouse=True, scope="session")
def _no_waiting_for_the_disk() -> Iterator[None]:
    """What a killed process has written stays with the kernel; only a power cut, which no test
    makes, would show whether it had reached the disk. Waiting takes milliseconds a file."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


@pytest.fixture(autouse=True)
def _log_level() -> Iterator[None]:
    """Commands set it for their own process, which is ours here."""
    logger = logging.getLogger("natural_langevin")
    before = logger.level
    yield
    logger.setLevel(before)


@pytest.fixture(autouse=True)
def _known_networks(request: pytest.FixtureRequest) -> Iterator[None]:
    """Linear layers and activations, whose statistics ``tests/statistics`` holds against loops:
    they are not compared once more at the start of every run, which would be a large part of it.
    Tests of what a run measures of itself, which is left out with them, are ``self_checked``."""
    if not KNOWN.intersection(below(request.path)) or "self_checked" in request.keywords:
        yield
        return
    from known_networks import not_checked_again

    with pytest.MonkeyPatch.context() as patch:
        not_checked_again(patch)
        yield


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Ctrl-C as Python has it by default, whatever this process was started with: under ``nohup``,
    or in a shell's background, interrupts are ignored, and children would inherit that."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def network() -> nn.Module:
    """3 inputs, 4 tanh units, 3 outputs; the same weights every time."""
    from oracle import build

    return build("bias")


@pytest.fixture
def network_without_bias() -> nn.Module:
    from oracle import build

    return build("no bias")


@pytest.fixture
def classes() -> tuple[Tensor, Tensor]:
    """40 samples of 3 features in 3 classes that the features say something about."""
    import torch

    generator = torch.Generator().manual_seed(1)
    x = torch.randn(40, 3, generator=generator)
    return x, (x + 0.5 * torch.randn(40, 3, generator=generator)).argmax(1)


@pytest.fixture
def regression() -> tuple[Tensor, Tensor]:
    """40 samples of 3 features and 3 real targets with noise of standard deviation 0.3."""
    import torch

    generator = torch.Generator().manual_seed(2)
    x = torch.randn(40, 3, generator=generator)
    return x, x.flip(1) + 0.3 * torch.randn(40, 3, generator=generator)
