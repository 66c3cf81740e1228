"""Tables and finished runs that the tests of the commands share, made once."""

from pathlib import Path

import pytest
import torch

from tables import SMALL, flowers, prices, run


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    """Fastest for networks this small."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def classes(tmp_path_factory) -> Path:
    """The folder of a finished classification; flowers.csv lies beside it."""
    folder = tmp_path_factory.mktemp("classes")
    flowers(folder / "flowers.csv")
    words = ("train", folder / "flowers.csv", "--target", "kind", "--out", folder / "run")
    result = run(*words, *SMALL, "--steps", "200")
    assert result.exit_code == 0, result.output
    (folder / "said.txt").write_text(result.output)
    return folder / "run"


@pytest.fixture(scope="session")
def numbers(tmp_path_factory) -> Path:
    """The folder of a finished regression; prices.csv lies beside it."""
    folder = tmp_path_factory.mktemp("numbers")
    prices(folder / "prices.csv")
    words = ("train", folder / "prices.csv", "--target", "price", "--out", folder / "run")
    result = run(*words, *SMALL, "--steps", "300")
    assert result.exit_code == 0, result.output
    (folder / "said.txt").write_text(result.output)
    return folder / "run"
