"""Helper modules of this folder on the path; one thread, which is fastest for tiny models; and no
self-checks, which would be a tenth of the time."""

import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch

from natural_langevin._internal.proven import proven_network

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True)
def _known_networks(request: pytest.FixtureRequest) -> Iterator[None]:
    """Linear layers and activations, whose statistics ``tests/statistics`` holds against loops:
    they are not compared once more at the start of every run. Tests of what a run measures of
    itself, which is left out with them, carry the mark ``self_checked``."""
    with nullcontext() if request.node.get_closest_marker("self_checked") else proven_network():
        yield
