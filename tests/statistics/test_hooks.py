"""A user's own hooks: those of the forward pass are part of the network, those of the backward
pass are refused or mentioned, since what they return is the gradient of no density. In a training
loop of one's own, around the optimizer, all of them work as torch has it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import small_run
from natural_langevin import Langevin, Posterior, likelihoods, preconditioners, priors
from natural_langevin.optim import NaturalLangevin

METRICS = [preconditioners.QuasiDiagonalFisher, preconditioners.Euclidean]


class Written(nn.Module):
    """``small_run.network`` with what the hooks below do written into its forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.net = small_run.network()

    def forward(self, x: Tensor) -> Tensor:
        h = self.net[1](3 * self.net[0](x))  # type: ignore[index]
        return self.net[2](h + 1)  # type: ignore[index, no-any-return]


def draws(net: nn.Module, metric: type, compile: bool | str = "auto") -> list[Tensor]:
    settings = {"model": net, "preconditioner": metric(), "compile": compile}
    return [*small_run.sample(6, sampler=settings).samples.values()]


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("compile", [False, "auto"])
def test_forward_hooks_are_part_of_the_network(metric: type, compile: bool | str) -> None:
    net = small_run.network()
    net[0].register_forward_hook(lambda module, args, output: 3 * output)  # type: ignore[index]
    net[2].register_forward_pre_hook(lambda module, args: (args[0] + 1,))  # type: ignore[index]
    for found, expected in zip(
        draws(net, metric, compile), draws(Written(), metric, False), strict=True
    ):
        torch.testing.assert_close(found, expected)


def test_forward_hooks_that_only_look_change_nothing() -> None:
    seen: list[Tensor] = []
    net = small_run.network()
    net[0].register_forward_hook(lambda module, args, output: seen.append(output))  # type: ignore[index]
    for found, expected in zip(
        draws(net, METRICS[0]), draws(small_run.network(), METRICS[0]), strict=True
    ):
        assert torch.equal(found, expected)
    assert seen


def on_backward(net: Any) -> None:
    net[2].register_full_backward_hook(lambda module, inwards, outwards: (0 * inwards[0],))


def before_backward(net: Any) -> None:
    net[2].register_full_backward_pre_hook(lambda module, outwards: (0 * outwards[0],))


def of_old(net: Any) -> None:
    net[2].register_backward_hook(lambda module, inwards, outwards: None)


@pytest.mark.parametrize("put", [on_backward, before_backward, of_old])
def test_backward_hooks_are_refused_by_name(put: Callable[[Any], None]) -> None:
    net = small_run.network()
    put(net)
    with pytest.raises(ValueError, match=r"layers \['2'\] have backward hooks.*NaturalLangevin"):
        Langevin(net, likelihoods.Categorical())


def test_predictions_need_no_gradient(tmp_path: Path) -> None:
    trained = small_run.sample()
    trained.save(tmp_path)
    net = small_run.network()
    on_backward(net)
    x, _ = small_run.data()
    assert torch.equal(Posterior.load(tmp_path, net).predict(x).mean, trained.predict(x).mean)


def test_hooks_on_parameters_are_not_called_which_is_said(caplog: pytest.LogCaptureFixture) -> None:
    net = small_run.network()
    with caplog.at_level(logging.WARNING, "natural_langevin"):
        Langevin(net, likelihoods.Categorical())
        assert not caplog.text
        net.get_parameter("0.weight").register_hook(lambda gradient: 0 * gradient)
        Langevin(net, likelihoods.Categorical())
    assert "['0.weight'] have gradient hooks, which a run does not call" in caplog.text
    assert "requires_grad_(False)" in caplog.text


@pytest.mark.parametrize("metric", METRICS)
def test_the_optimizer_follows_the_gradients_that_hooks_leave(metric: type) -> None:
    """A gradient of 0 from a hook is one of weights that no data speak of: at temperature 0 they
    follow the prior alone."""
    x, y = small_run.data()
    ends = []
    for put in (on_backward, lambda net: None):
        net = small_run.network()
        put(net)
        optimizer = NaturalLangevin(
            net, likelihoods.Categorical(), num_data=len(x), lr=1e-2, temperature=0.0,
            preconditioner=metric(), prior=priors.Flat(), check_loss=False,
        )  # fmt: skip
        F.cross_entropy(net(x), y).backward()
        optimizer.step()
        ends.append([p.detach() for p in net.parameters()])
    start = list(small_run.network().parameters())
    stopped, free = ends
    assert all(map(torch.equal, stopped[:2], start[:2]))  # what is before the hook
    assert all(map(torch.equal, stopped[2:], free[2:]))
    assert not any(map(torch.equal, free, start))
