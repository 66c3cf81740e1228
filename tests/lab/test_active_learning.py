"""Labels by rule: batches without copies, and the two networks of the comparison on MNIST."""

from __future__ import annotations

import functools

import pytest
import torch

from lab import active_learning


def test_a_batch_leaves_out_copies_that_bald_takes() -> None:
    """Inputs 0 to 3 are one question; 4 is another, of a little less information."""
    first = torch.tensor([0.99, 0.01, 0.99, 0.01])
    other = torch.tensor([0.97, 0.97, 0.03, 0.03])
    p = torch.stack([first, first, first, first, other, torch.full((4,), 0.5)], 1)
    samples = torch.stack([p, 1 - p], -1)
    none = torch.tensor([], dtype=torch.long)
    assert 4 not in active_learning.bald(samples, none, 4)
    assert 4 in active_learning.together(samples, none, 2, among=5)
    assert set(active_learning.bald(samples, torch.tensor([0, 1, 2, 3]), 1).tolist()) == {4}


def test_a_round_on_digits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(active_learning, "LENGTHS", {"tiny": (6, 2, 1)})
    few = functools.partial(active_learning.together, among=30)
    monkeypatch.setattr(active_learning, "together", few)
    rules = (*active_learning.RULES, active_learning.FORTY)
    rows = [active_learning.digits_row(0, "tiny", rule) for rule in rules]
    assert len({row["nll"] for row in rows}) == len(rows)


def test_a_mask_leaves_out_the_same_units_for_all_images(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(active_learning, "NETWORKS", 2)
    net = active_learning.Convolutions()
    x = torch.rand(3, 1, 28, 28)
    masks = [torch.ones(32), torch.ones(64), torch.ones(128)]
    whole = active_learning._masked(net, x, masks)
    torch.testing.assert_close(whole, net(x))
    masks[2] = torch.zeros(128)
    assert torch.equal(active_learning._masked(net, x, masks), net.fc2.bias.expand(3, 10))


def test_pretraining_makes_two_views_of_an_image_alike() -> None:
    torch.manual_seed(0)
    images = torch.nn.functional.interpolate(torch.randn(16, 1, 5, 5), 28, mode="bilinear")
    weights = active_learning.pretrained(images, seed=0, steps=12, batch=16)
    assert not any(weights[f"fc2.{name}"].any() for name in ("weight", "bias"))

    def alike(net: active_learning.Convolutions) -> float:
        """By how much two views of an image are closer than views of two."""
        torch.manual_seed(1)
        with torch.no_grad():
            a, b = (
                torch.nn.functional.normalize(net.features(active_learning.views(images)).relu())
                for _ in range(2)
            )
        cosines = a @ b.T
        return float(cosines.diag().mean() - cosines.mean())

    fresh, trained = active_learning.Convolutions(), active_learning.Convolutions()
    trained.load_state_dict(weights)
    with torch.no_grad():
        assert trained.features(images).relu().square().mean().sqrt() == pytest.approx(
            1.0, rel=1e-3
        )
    assert alike(trained) > 2 * alike(fresh)
