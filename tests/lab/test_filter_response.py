"""The residual network's statistics: its norm's rule against the float64 per-sample loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.modules import module as torch_module

from lab.models import FilterResponseNorm, residual, resnet_frn
from natural_langevin import Langevin, likelihoods
from oracle import assert_exact, chains_of, cross_entropy, per_sample_loop
from registry import CASES, Case, batch, evaluate, make
from zoo import pooled, thresholds

OWN = {
    "filter response norm": Case(
        lambda: pooled(nn.Conv2d(2, 3, 2), thresholds(FilterResponseNorm(3)), features=3),
        (2, 4, 3)),
    "residual network": Case(
        lambda: resnet_frn(depth=8, width=2, colours=2, classes=3), (12, 12, 2)),
}  # fmt: skip


@pytest.mark.parametrize(("dtype", "chains"), [(torch.float32, 1), (torch.float64, 3)])
@pytest.mark.parametrize("name", OWN)
def test_statistics_equal_the_per_sample_loop(
    name: str, dtype: torch.dtype, chains: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(CASES, name, OWN[name])
    model, (x, y) = make(name, dtype), batch(name, 4, chains, dtype)
    params = chains_of(model, chains)
    evaluation, gradients = evaluate(name, params, x, y)
    for c in range(chains):
        own = {k: p[c] for k, p in params.items()}
        expected = per_sample_loop(model, cross_entropy, x[c], y[c], own)
        assert_exact(evaluation, c, expected.samples)
    (plan,) = gradients._plans.values()
    assert not plan.replayed, "the norm has a rule"
    assert not plan.whole


def test_rounding_is_no_wrong_rule() -> None:
    """Many layers in bfloat16: a batch's products and a single sample's are rounded differently
    by more than the check allows, so it takes both in full precision, and then puts things back."""
    model = resnet_frn(depth=8, width=2)
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(3.0 if p.ndim == 4 else 1.0)
    x = torch.randn(8, 8, 8, 3, generator=torch.Generator().manual_seed(0))
    y = torch.arange(8) % 10
    ours = Langevin(
        model, likelihoods.Categorical(), chains=1, step_size=1e-4, num_data=8,
        autocast=torch.bfloat16,
    )  # fmt: skip
    network, before = ours.frame.gradients.network, torch.backends.cudnn.allow_tf32
    seen = []

    def look(*args: object) -> None:
        seen.append((network.autocast, torch.backends.cudnn.allow_tf32))

    model_hook = network.model.register_forward_hook(look)
    ours.prepare((x, y), steps=1, batch_size=3)
    model_hook.remove()
    assert (None, False) in seen
    assert (network.autocast, torch.backends.cudnn.allow_tf32) == (torch.bfloat16, before)
    _, info = ours.step(ours.init(), (x[:3], y[:3]))
    assert torch.isfinite(info.loss).all()


def looking(*_: object) -> None:
    """A hook that only looks."""


@pytest.mark.parametrize("which", ["conv", "norm"])
@pytest.mark.parametrize(
    "put",
    [
        lambda m: m.register_forward_hook(looking),
        lambda m: m.register_forward_pre_hook(looking),
        lambda m: m.register_full_backward_hook(looking),
        lambda m: m.register_full_backward_pre_hook(looking),
        lambda m: setattr(m, "forward", m.forward),
        lambda m: torch_module.register_module_forward_hook(looking),
    ],
    ids=["forward", "pre-forward", "backward", "pre-backward", "patched", "on all modules"],
)
def test_layers_with_hooks_are_called_where_kernels_would_pass_them_by(
    put: Callable[[nn.Module], Any], which: str
) -> None:
    """On CUDA a residual layer's convolution and norm are otherwise one kernel."""
    layer = residual._Layer(3, 4)
    assert not residual._recorded(layer.conv, layer.norm)
    handle = put(layer.get_submodule(which))
    try:
        assert residual._recorded(layer.conv, layer.norm)
    finally:
        if handle is not None:
            handle.remove()
