"""Tables and finished runs that the tests of the commands share, made once."""

from pathlib import Path
from typing import Any

import pytest
import torch

from natural_langevin.cli.pages import picture
from natural_langevin.tabular import fit
from short_recipe import shorten
from tables import SMALL, flowers, prices, run


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    """Fastest for networks this small."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True, scope="module")
def _short():
    """What is learned here is a sentence or a file, not how well. Of a whole session, it would be
    the recipe of every test that comes after these."""
    with pytest.MonkeyPatch.context() as patch:
        shorten(patch)
        patch.setattr(fit, "MOST_SHUFFLED", 64 * 35)  # 35 rows of the digits, 300 of most tables
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
    return trained(folder, "flowers.csv", "kind", 200)


@pytest.fixture(scope="session")
def numbers(tmp_path_factory) -> Path:
    """The folder of a finished regression; prices.csv lies beside it."""
    folder = tmp_path_factory.mktemp("numbers")
    prices(folder / "prices.csv")
    return trained(folder, "prices.csv", "price", 300)


def trained(folder: Path, table: str, target: str, steps: int) -> Path:
    """A finished run, by the short recipe: the fixtures of a session come before a module's."""
    words = ("train", folder / table, "--target", target, "--out", folder / "run")
    with pytest.MonkeyPatch.context() as patch:
        shorten(patch)
        result = run(*words, *SMALL, "--steps", str(steps))
    assert result.exit_code == 0, result.output
    (folder / "said.txt").write_text(result.output)
    return folder / "run"
