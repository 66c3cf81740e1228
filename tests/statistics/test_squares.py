"""The kernel that squares convolutions' per-sample gradients where it forms them."""

from __future__ import annotations

from pathlib import Path

from triton_interpreter import run_script


def test_the_kernel_in_its_interpreter() -> None:
    assert run_script(Path(__file__).with_name("interpreted_squares.py")).count("agrees") == 11
