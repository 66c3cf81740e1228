"""Which device a command runs on where nobody says so."""

from __future__ import annotations

import pytest
import torch

from natural_langevin.cli.device import choose_device


@pytest.mark.parametrize(
    ("gpu", "columns", "expected"),
    [(True, None, "cuda"), (True, 13, "cpu"), (True, 784, "cuda"), (False, 784, "cpu")],
)
def test_small_tables_stay_on_the_cpu(
    monkeypatch: pytest.MonkeyPatch, gpu: bool, columns: int | None, expected: str
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    assert choose_device("auto", columns=columns) == expected
    if gpu:
        assert choose_device("cuda", columns=columns) == "cuda"  # what was asked for
