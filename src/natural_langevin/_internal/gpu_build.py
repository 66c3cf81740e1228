"""Triton's kernels are built side by side, and its own start-up while others work.

By itself Triton builds a kernel in its first call, one after the other, and each twice: machine
code (up to a second) and, before version 3.7, a C function that launches it (a third of a second of
gcc). Both let other threads run. What fails here fails again in the kernel's first call, where
somebody expects it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from types import SimpleNamespace
from typing import Any

import torch

_LOCK = threading.Lock()
_LOADING: list[Future[None]] = []


#: How a kernel is started: ``launch``, or ``build``.
Launch = Callable[..., None]


def launch(kernel: Any, grid: tuple[int, ...], *arguments: Any, **options: Any) -> None:
    """Runs a kernel; ``build`` only compiles it."""
    kernel[grid](*arguments, **options)


def build(kernel: Any, grid: tuple[int, ...], *arguments: Any, **options: Any) -> None:
    """What ``launch`` would run, compiled and not run; ``arguments`` may be dtypes of tensors."""
    kernel.warmup(*arguments, grid=grid, **options)


def start(device: torch.device) -> None:
    """Loads Triton in a thread, once in a process, with a kernel that many runs need."""
    if device.type == "cuda" and not _LOADING:
        pool = ThreadPoolExecutor(2, "triton")
        hashing = pool.submit(_hash)
        _LOADING.append(pool.submit(_load, device, hashing))
        pool.shutdown(wait=False)


def wait(device: torch.device) -> None:
    """Waits until ``start`` has done its part: Triton cannot be loaded by two threads at a time."""
    start(device)
    for loading in _LOADING:
        with suppress(TimeoutError):
            loading.result(timeout=60)


def _hash() -> None:
    """Has Triton hash its own 400 MB, which it does before it looks into its cache."""
    with suppress(Exception):
        from triton.runtime.cache import triton_key

        triton_key()


def _load(device: torch.device, hashing: Future[None]) -> None:
    with suppress(Exception):
        from triton.runtime import driver

        from natural_langevin._internal import triton_categorical

        driver.active  # noqa: B018 - made when it is first asked for, with gcc
        hashing.result()
        with torch.cuda.device(device), side_by_side():
            triton_categorical.build_usual(build)


@contextmanager
def side_by_side() -> Iterator[None]:
    """Inside, ``build`` hands kernels to threads; at the end all are there."""
    from triton import AsyncCompileMode, knobs

    pool, launchers = ThreadPoolExecutor(8, "triton"), set()
    with _LOCK, pool, AsyncCompileMode(pool, ignore_errors=True):
        before = knobs.runtime.jit_cache_hook

        def hook(**about: Any) -> bool | None:
            with suppress(Exception):
                kernel, how = about["fn"].jit_function, about["compile"]
                if str(how["signature"]) not in launchers:
                    launchers.add(str(how["signature"]))
                    pool.submit(_build_launcher, kernel, how["signature"], how["constants"])
            return before(**about) if before is not None else None

        knobs.runtime.jit_cache_hook = hook
        try:
            yield
        finally:
            knobs.runtime.jit_cache_hook = before


def _build_launcher(kernel: Any, signature: Any, constants: Any) -> None:
    """Into Triton's cache on disk, where the kernel's first call finds it."""
    with suppress(Exception):  # other versions have other launchers, or none to build
        from triton.runtime import driver

        source = SimpleNamespace(fn=kernel, signature=signature, constants=constants)
        driver.active.launcher_cls(source, SimpleNamespace(tensordesc_meta=None))
