"""The callback in Lightning's own Trainer: the chain is that of a plain loop, also after a stop."""

import importlib
import logging
import sys
from functools import cache

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from natural_langevin import DivergenceError, likelihoods
from natural_langevin.optim import NaturalLangevin

# Lightning's advice about workers and logging, and its own use of torch's deprecated names.
pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning:lightning"),
    pytest.mark.filterwarnings("ignore::FutureWarning:lightning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


def data(size: int = 16) -> DataLoader:
    x = torch.randn(64, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return DataLoader(TensorDataset(x, (x.sum(1) > 0).long()), batch_size=size)


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2)).double()


def langevin(net: nn.Module, lr: float = 1e-3) -> NaturalLangevin:
    return NaturalLangevin(net, likelihoods.Categorical(), num_data=64, lr=lr)


@cache
def module_class() -> type:
    """Lightning takes seconds to import: here, in the process that runs these tests, alone."""
    from lightning.pytorch import LightningModule

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

    class Module(LightningModule):
        def __init__(self, lr: float = 1e-3, optimizer=langevin) -> None:
            super().__init__()
            self.net, self.lr, self.optimizer = network(), lr, optimizer

        def training_step(self, batch, index):
            x, y = batch
            return F.cross_entropy(self.net(x.to(self.net[0].weight.dtype)), y)

        def validation_step(self, batch, index):
            self.log("loss", self.training_step(batch, index))

        def configure_optimizers(self):
            optimizer = self.optimizer(self.net, self.lr)
            return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 2)]

    return Module


def make_module(lr: float = 1e-3, optimizer=langevin) -> nn.Module:
    return module_class()(lr, optimizer)


def fit(epochs: int, callback, module=None, loader=None, checkpoint=None, **options):
    from lightning.pytorch import Trainer

    trainer = Trainer(
        max_epochs=epochs,
        callbacks=[callback],
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        **options,
    )
    loader = loader or data()
    trainer.fit(module or make_module(), loader, loader, ckpt_path=checkpoint, weights_only=True)
    return trainer


def collector(**options):
    from natural_langevin.integrations.lightning import CollectPosterior

    return CollectPosterior(**options)


def assert_same(one, other, exactly: bool = True) -> None:
    for group in ("samples", "mean", "last"):
        for name, value in getattr(one, group).items():
            theirs = getattr(other, group)[name]
            assert torch.equal(value, theirs) if exactly else torch.allclose(value, theirs)


def test_the_chain_is_that_of_a_plain_loop():
    """With validation in between, which draws and counts nothing."""
    found = collector(burn_in=2, thin=3)
    fit(3, found)
    net = network()
    optimizer = langevin(net)
    kept = optimizer.collector(burn_in=2, thin=3)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    for _ in range(3):
        for x, y in data():
            optimizer.zero_grad()
            F.cross_entropy(net(x), y).backward()
            optimizer.step()
        schedule.step()
    assert found.kept == kept.kept == [5, 8, 11]
    assert_same(found.posterior, kept.posterior())
    assert found.posterior.predict(data().dataset.tensors[0]).mean.shape == (64, 2)


def test_a_resumed_run_continues_the_same_chain(tmp_path):
    whole, part, rest = (collector(burn_in=2, thin=3) for _ in range(3))
    fit(4, whole)
    fit(2, part).save_checkpoint(tmp_path / "half.ckpt")
    assert part.kept == [5, 8]
    fit(4, rest, checkpoint=tmp_path / "half.ckpt")
    assert rest.kept == whole.kept == [5, 8, 11, 14]
    assert_same(whole.posterior, rest.posterior)


def test_accumulated_batches_are_one_larger_batch():
    parts, large = collector(), collector()
    fit(2, parts, accumulate_grad_batches=2)
    fit(2, large, loader=data(32))
    assert parts.kept == large.kept == [1, 2, 3, 4]
    assert_same(parts.posterior, large.posterior, exactly=False)


def test_mixed_precision_keeps_full_precision_samples():
    found, plain = collector(), collector()
    for one, options in ((found, {"precision": "bf16-mixed"}), (plain, {})):
        module = make_module()
        module.net.float()
        fit(1, one, module, **options)
    for name, value in found.posterior.samples.items():
        assert value.dtype == torch.float32
        exact = plain.posterior.samples[name]
        assert not torch.equal(value, exact)
        # Same noise: what differs is what bfloat16's eight bits do to a gradient.
        assert (value - exact).norm() < 0.1 * exact.norm()


def test_divergence_is_an_error_that_is_logged_with_what_is_left(caplog):
    found = collector()
    with pytest.raises(DivergenceError):
        fit(20, found, make_module(lr=1e200))
    (said,) = [r.getMessage() for r in caplog.records if "diverged" in r.getMessage()]
    assert f"{len(found.kept)} iterates were kept before" in said


def test_mistakes_are_told_with_their_remedy(monkeypatch):
    with pytest.raises(ValueError, match="callbacks="):
        _ = collector().posterior
    with pytest.raises(ValueError, match="got 2 and 0"):
        collector(burn_in=2, thin=0)

    def sgd(net, lr):
        return torch.optim.SGD(net.parameters(), lr)

    with pytest.raises(ValueError, match=r"got 0 \(SGD\): use NaturalLangevin"):
        fit(1, collector(), make_module(optimizer=sgd))
    monkeypatch.setitem(sys.modules, "lightning.pytorch", None)
    monkeypatch.delitem(sys.modules, "natural_langevin.integrations.lightning")
    with pytest.raises(ImportError, match=r"natural-langevin\[lightning\]"):
        importlib.import_module("natural_langevin.integrations.lightning")
