"""scikit-learn's digits: the split is part of the definition, so it is pinned here."""

from __future__ import annotations

import ast
import hashlib
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from natural_langevin.data import images
from natural_langevin.data.dataset import digits


def test_shapes_types_and_range() -> None:
    pytest.importorskip("sklearn")
    dataset = digits()
    assert dataset.train_x.shape == (1437, 64)
    assert dataset.test_x.shape == (360, 64)
    assert dataset.train_y.shape == (1437,)
    assert dataset.test_y.shape == (360,)
    for x, y in ((dataset.train_x, dataset.train_y), (dataset.test_x, dataset.test_y)):
        assert x.dtype == torch.float32
        assert y.dtype == torch.int64
        assert x.min() == 0
        assert x.max() == 1
        assert set(y.tolist()) == set(range(10))
    assert dataset.num_classes == 10
    assert dataset.name == "digits"
    assert "scikit-learn" in dataset.source


def test_the_split_is_a_partition_and_stratified() -> None:
    datasets = pytest.importorskip("sklearn.datasets")
    dataset = digits()
    pixels, labels = datasets.load_digits(return_X_y=True)
    ours = torch.cat([dataset.train_x, dataset.test_x]) * 16
    assert sorted(ours.int().tolist()) == sorted(pixels.astype(int).tolist())
    in_all = torch.bincount(torch.from_numpy(labels)).double()
    in_test = torch.bincount(dataset.test_y).double()
    assert (in_test - in_all * 360 / 1797).abs().max() < 1


def test_the_split_never_changes() -> None:
    pytest.importorskip("sklearn")
    first, second = digits(), digits()
    assert torch.equal(first.train_x, second.train_x)
    assert torch.equal(first.test_x, second.test_x)
    pixels = (first.test_x * 16).to(torch.uint8).numpy().tobytes()
    assert hashlib.sha256(pixels).hexdigest()[:16] == "3cc232bd25364446"


def test_no_global_random_state_is_touched() -> None:
    pytest.importorskip("sklearn")
    numpy_before, torch_before = str(np.random.get_state()), torch.get_rng_state()
    digits()
    assert str(np.random.get_state()) == numpy_before
    assert torch.equal(torch.get_rng_state(), torch_before)


def test_without_scikit_learn_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(ImportError, match=r"pip install 'natural-langevin\[sklearn\]'"):
        digits()


def test_importing_the_package_needs_only_torch_and_numpy() -> None:
    """What a module of `data` imports at its top; imports inside functions are for extras."""
    allowed = {*sys.stdlib_module_names, "torch", "numpy", "natural_langevin"}
    modules = sorted(Path(images.__file__).parent.glob("*.py"))
    assert len(modules) > 5
    for module in modules:
        for node in ast.parse(module.read_text(encoding="utf-8")).body:
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                names = [node.module or ""]
            for name in names:
                assert name.split(".")[0] in allowed, f"{module.name} imports {name}"
