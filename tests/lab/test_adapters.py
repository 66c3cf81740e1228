"""The study of adapters: its labels, what is trainable, and its sums."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from lab import adapters
from natural_langevin import Langevin, likelihoods


def test_labels_are_the_signs_that_were_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    lines = [f"a line of some length, number {k}{sign}" for k, sign in enumerate(",.?!; ")]
    path.write_text("before " * 200 + "\n" + "\n".join(lines), encoding="utf-8")
    found = adapters.corpus(path)
    assert found.y.tolist()[-6:] == [0, 1, 2, 2, 3, 3]
    assert found.x.shape[1] == adapters.WINDOW
    assert int(found.x.max()) < found.characters
    signs = {sorted(set(path.read_text())).index(c) + 1 for c in ".?!;"}
    assert not signs & set(found.x.flatten().tolist())


def test_adapters_and_the_head_alone_are_sampled() -> None:
    base = adapters.Transformer(9, 8, 2, 1)
    net = adapters.adapted(base, 0)
    codes = torch.tensor([[1, 2, 3] + [0] * (adapters.WINDOW - 3)])
    shorter = codes[:, :5]
    torch.testing.assert_close(net(codes), net(shorter))  # what follows the last is not seen
    sampler = Langevin.from_trained(net, likelihoods.Categorical(), parameters="adapters", chains=1)
    names = {n for n, p in net.named_parameters() if p.requires_grad}
    assert set(sampler.init().params) == names
    assert len(names) == 2 * 4 + 2


def test_sums_over_seeds() -> None:
    rows = [
        {"seed": s, "methods": {"MAP": dict.fromkeys(("nll", "accuracy", "ece", "seconds"), v)}}
        for s, v in enumerate((1.0, 3.0))
    ]
    rows.append({"seed": 2, "methods": {"MAP": {"failed": "memory"}}})
    assert adapters.summary(rows)["MAP"]["nll"] == [2.0, pytest.approx(1.0)]
