"""Likelihoods of one's own and the units of targets: they are asked, not their class."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from natural_langevin import Posterior, likelihoods
from natural_langevin.preconditioners import QuasiDiagonalFisher
from short_recipe import SHORT, changed, shorten
from short_unit_runs import network, rows, sampled


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """A short way down: what is compared has gone the same one."""
    shorten(monkeypatch, changed(SHORT, descent={"rounds": (20,)}))


class OwnNoise(likelihoods.Likelihood):
    """A user's own Gaussian of known width, which says that units may be changed."""

    has_units = True

    def __init__(self, width: float) -> None:
        self.width = width

    @property
    def known_width(self) -> float:
        return self.width

    def in_units(self, size: float) -> OwnNoise:
        return OwnNoise(self.width / size)

    def distribution(self, outputs: Tensor, state: likelihoods.State) -> Any:
        return torch.distributions.Normal(outputs, self.width, validate_args=False)

    def __repr__(self) -> str:
        return f"OwnNoise({self.width})"


class OwnLaplace(likelihoods.Likelihood):
    """A user's own noise, of a width that nobody learns, which ``Scaled`` knows nothing of."""

    has_units = True

    def in_units(self, size: float) -> OwnLaplace:
        return self

    def distribution(self, outputs: Tensor, state: likelihoods.State) -> Any:
        return torch.distributions.Laplace(outputs, 0.1, validate_args=False)


def test_one_that_has_units_must_say_what_it_is_in_others() -> None:
    class Silent(OwnLaplace):
        in_units = likelihoods.Likelihood.in_units

    x, y = rows()
    with pytest.raises(NotImplementedError, match="Silent has has_units=True"):
        sampled(x, 1e5 * y, Silent(), network())


def test_one_that_is_a_loss_alone_predicts_outputs_and_says_what_it_lacks() -> None:
    class Loss(likelihoods.Likelihood):
        def log_loss(self, outputs: Tensor, y: Tensor, state: likelihoods.State) -> Tensor:
            return (outputs - y).abs().sum(-1) / 0.1

    x, y = rows()
    _, posterior = sampled(x, y, Loss(), network())
    by_hand = torch.stack([
        posterior.network(c, d)(x) for c in range(posterior.chains) for d in range(posterior.draws)
    ])  # fmt: skip
    torch.testing.assert_close(posterior.predict(x).mean, by_hand.mean(0))
    with pytest.raises(TypeError, match="Loss has no predictive distribution"):
        posterior.evaluate(x, y)


def test_columns_of_noise_that_cannot_be_scaled_share_a_unit() -> None:
    assert likelihoods.Scaled.takes(likelihoods.StudentT())
    assert not likelihoods.Scaled.takes(OwnLaplace())
    x, y = rows()
    both = torch.cat([y, 1e5 * y], 1)
    _, posterior = sampled(x, both, OwnLaplace(), network(2))
    assert isinstance(posterior.likelihood, OwnLaplace)
    assert len(set(posterior.config["units"]["y"]["scale"])) == 1
    assert posterior.predict(x).mean.isfinite().all()


def test_a_likelihood_of_ones_own_that_was_scaled_is_asked_for_by_name(tmp_path: Path) -> None:
    class OwnWidth(OwnNoise):
        known_width = None

        def in_units(self, size: float) -> OwnWidth:
            return self

    x, y = rows(numbers=2)
    _, posterior = sampled(x, y * torch.tensor([1e5, 1.0]), OwnWidth(0.3), network(2))
    assert isinstance(posterior.likelihood, likelihoods.Scaled)
    assert posterior.predict(x).mean.isfinite().all()
    posterior.save(tmp_path / "saved")
    with pytest.raises(ValueError, match="give it again") as error:
        Posterior.load(tmp_path / "saved", network(2))
    assert "malformed" not in str(error.value)
    loaded = Posterior.load(tmp_path / "saved", network(2), likelihood=OwnWidth(0.3))
    torch.testing.assert_close(loaded.predict(x).mean, posterior.predict(x).mean)


def test_a_likelihood_of_ones_own_is_asked_and_not_its_class() -> None:
    """The library's Gaussian of the same width samples the same in one metric, to rounding."""
    x, y = rows()
    y = 1e5 * y + 4e5
    own, ours = (
        sampled(x, y, one, network(), preconditioner=QuasiDiagonalFisher())[1]
        for one in (OwnNoise(3e4), likelihoods.Gaussian(3e4))
    )
    assert own.config["units"] == ours.config["units"] is not None
    assert isinstance(own.likelihood, OwnNoise)
    torch.testing.assert_close(own.predict(x).mean, ours.predict(x).mean, rtol=1e-2, atol=1e3)
