"""Kernels are built side by side, and what cannot be built harms nobody."""

from __future__ import annotations

import sys

import pytest
import torch

import warm
from natural_langevin._internal import gpu_build

#: For a GPU that is not there: what Triton asks of a driver before it launches anything.
BUILD = """
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from types import SimpleNamespace

asked = []
driver.set_active(SimpleNamespace(
    get_current_device=lambda: 0, get_current_stream=lambda device: 0,
    get_current_target=lambda: GPUTarget("cuda", 90, 32),
    launcher_cls=lambda source, about: asked.append(source.fn) or 1 / 0,
))
from natural_langevin._internal import gpu_build, triton_categorical

kernel = triton_categorical._kernel
with gpu_build.side_by_side():
    triton_categorical.build_usual(gpu_build.build)
(built,) = kernel.device_caches[0][0].values()
assert len(built.asm["cubin"]) > 1000
assert asked == [kernel], "its launcher is built with it; that this one fails is nobody's business"
assert knobs.runtime.jit_cache_hook is None
print("built")
"""


def test_a_kernel_and_its_launcher_are_built_together(tmp_path):
    pytest.importorskip("triton")
    script = tmp_path / "script.py"
    script.write_text(BUILD)
    assert warm.run([script], {"TRITON_CACHE_DIR": str(tmp_path)}) == "built\n"


def test_without_triton_nothing_happens(monkeypatch):
    monkeypatch.setitem(sys.modules, "triton", None)
    monkeypatch.setattr(gpu_build, "_LOADING", [])
    gpu_build.wait(torch.device("cpu"))
    assert gpu_build._LOADING == []
    gpu_build.wait(torch.device("cuda", 0))
    (loading,) = gpu_build._LOADING
    assert loading.done()
    assert loading.exception() is None
