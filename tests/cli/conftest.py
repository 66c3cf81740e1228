"""Tables and finished runs that the tests of the commands share, made once."""

from pathlib import Path
from typing import Any

import pytest
import torch

from natural_langevin.report import picture
from short_recipe import shorten
from tables import SMALL, flowers, prices, run


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    """Fastest for networks this small."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True, scope="session")
def _short():
    """What is learned here is a sentence or a file, not how well."""
    with pytest.MonkeyPatch.context() as patch:
        shorten(patch)
        yield


@pytest.fixture(autouse=True, scope="module")
def _coarse_pictures(request):
    """Drawn from the same numbers, in a fraction of a second's time: a picture as users have it is
    in test_uncertainty.py."""
    if request.path.name == "test_uncertainty.py":
        yield
        return
    fine = picture.new_figure

    def coarse(**options: Any) -> Any:
        figure = fine(**options | {"layout": None})
        whole = figure.savefig
        figure.savefig = lambda *args, **options: whole(*args, **options | {"dpi": 20})
        return figure

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(picture, "new_figure", coarse)
        yield


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
