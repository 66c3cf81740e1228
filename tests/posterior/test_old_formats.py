"""What version 0.1 wrote to disk is still read: a saved posterior, and runs broken off at step 9.

The files in ``fixtures`` were written once, by ``small_run`` with ``Euclidean()``: ``saved`` by
``posterior.save``; the others by a run with ``every=2`` that ended after its fifth draw, alone
(``checkpoint``), with its samples in a folder (``with_store``), and on two ranks (``sharded``);
``quasi_diagonal`` with that metric, at its defaults of then. They are copied before they are used,
and never written again."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

import small_run
from natural_langevin import Posterior, preconditioners
from natural_langevin.run.checkpoint import CheckpointError

FIXTURES = Path(__file__).parent / "fixtures"


def sample(metric=None, **settings):
    metric = metric or preconditioners.Euclidean()
    return small_run.sample(sampler={"preconditioner": metric}, **settings)


@pytest.fixture(scope="module")
def undisturbed():
    return sample()


def assert_close(one: Posterior, other: Posterior) -> None:
    """To rounding: the files may have been written on another kind of processor."""
    for group in ("samples", "mean", "last"):
        for name, value in getattr(one, group).items():
            torch.testing.assert_close(getattr(other, group)[name], value)
    torch.testing.assert_close(one.trace, other.trace)


def test_a_saved_posterior_is_read(undisturbed):
    saved = Posterior.load(FIXTURES / "saved", small_run.network())
    assert_close(undisturbed, saved)
    x, _ = small_run.data()
    torch.testing.assert_close(saved.predict(x).mean, undisturbed.predict(x).mean)


@pytest.mark.parametrize("kind", ["checkpoint", "sharded", "with_store"])
def test_a_run_goes_on(undisturbed, tmp_path, caplog, kind):
    shutil.copytree(FIXTURES / kind, tmp_path / kind)
    where = {"checkpoint": tmp_path / kind}
    if kind == "with_store":
        where = {name: tmp_path / kind / name for name in ("checkpoint", "draws")}
        where["store"] = where.pop("draws")
    with caplog.at_level("INFO"):
        assert_close(undisturbed, sample(**where))
    assert "resuming at step 8" in caplog.text


def test_a_metric_goes_on_in_the_order_it_had(tmp_path, caplog):
    shutil.copytree(FIXTURES / "quasi_diagonal", tmp_path / "run")
    as_then = preconditioners.QuasiDiagonalFisher(damping=1e-4, fresh=True, adapt="always")
    with caplog.at_level("INFO"):
        assert_close(sample(as_then), sample(as_then, checkpoint=tmp_path / "run"))
    assert "resuming at step 8" in caplog.text


@pytest.mark.parametrize(
    "other",
    [
        preconditioners.QuasiDiagonalFisher(),
        preconditioners.QuasiDiagonalFisher(damping=1e-4),
        preconditioners.QuasiDiagonalFisher(damping=1e-4, fresh=True),
        preconditioners.QuasiDiagonalFisher(damping=1e-3, fresh=True, adapt="always"),
    ],
)
def test_another_metric_is_another_run(tmp_path, other):
    shutil.copytree(FIXTURES / "quasi_diagonal", tmp_path / "run")
    with pytest.raises(CheckpointError, match=r"another run: preconditioner differ"):
        sample(other, checkpoint=tmp_path / "run")
