"""Kernels are built side by side, and what cannot be built harms nobody."""

from __future__ import annotations

import sys

import pytest
import torch

import warm
from natural_langevin._internal import gpu_build

#: For a GPU that is not there: what Triton asks of a driver before it launches anything.
NO_DRIVER = """
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
"""

BUILD = """
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
    script.write_text(NO_DRIVER + BUILD)
    assert warm.run([script], {"TRITON_CACHE_DIR": str(tmp_path)}) == "built\n"


TILES = """
from natural_langevin.execution.kernels import triton_perceptron as own
from natural_langevin.execution.kernels.triton_perceptron_kernels import forward_kernel

memory = 101_376  # of a program, on cards of 99 KiB; an H200's MANY takes 192
tile = own.tiles_for(64, 10, memory).forward
built = forward_kernel.warmup(
    *[torch.float32] * 5, 100, 784, 400, 0, ACTIVATION=1, FIRST=0.0, SECOND=0.0, HAS_BIAS=True,
    PRECISION="tf32", BLOCK_B=tile.samples, BLOCK_O=tile.units, DEPTH=tile.depth,
    num_warps=tile.warps, num_stages=tile.stages, grid=(1,),
)
assert memory / 2 < built.metadata.shared <= memory, built.metadata.shared
print("fits")
"""


def test_tiles_fit_into_the_memory_of_a_device(tmp_path):
    pytest.importorskip("triton")
    script = tmp_path / "script.py"
    script.write_text("import torch" + NO_DRIVER + TILES)
    assert warm.run([script], {"TRITON_CACHE_DIR": str(tmp_path)}) == "fits\n"
    from natural_langevin.execution.kernels.triton_perceptron import FEW, MANY, tiles_for

    assert tiles_for(8, 10, 232_448) == MANY  # where there is enough, as they were chosen
    assert tiles_for(7, 10, 65_536) == FEW
    small = tiles_for(8, 64, 65_536)
    assert [tile.depth for tile in small] == [16, 32, 32]
    assert small.last.units == 64


def test_without_triton_nothing_happens(monkeypatch):
    monkeypatch.setitem(sys.modules, "triton", None)
    monkeypatch.setattr(gpu_build, "_LOADING", [])
    gpu_build.wait(torch.device("cpu"))
    assert gpu_build._LOADING == []
    gpu_build.wait(torch.device("cuda", 0))
    (loading,) = gpu_build._LOADING
    assert loading.done()
    assert loading.exception() is None
