"""Triton's interpreter, which runs kernels on the CPU: scripts in it, and whether it works at all.

Triton decides at import whether kernels are interpreted, so every script is a process of its own.
It is forked from one that may have Triton loaded, by torch's compiler, and loads it again.
"""

from __future__ import annotations

import dataclasses
import os
import sys
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest

import warm

#: How a script begins its only line where the interpreter is to blame.
UNUSABLE = "unusable:"
tl: Any = None  # triton.language, where a kernel looks for it


def start() -> bool:
    """Before a kernel is imported. Whether the interpreter works; where it does not, the reason is
    printed for ``run_script``."""
    _load()
    if reason := _fault():
        print(UNUSABLE, reason)
    return not reason


def _load() -> None:
    """Triton is loaded, or loaded again, such that kernels are
    interpreted; and without most of the interpreter's time, which goes into preparing what is
    prepared and into what nobody looks at.

    The language is replaced by an interpreted one when a kernel starts, and again at every call of
    a function within it. Here the second is left out where the same module's was replaced before,
    by the same start of a kernel. Whether integers overflow is worked out at every sum and product,
    and told to an assertion that is only made in debug mode: here it is not worked out."""
    os.environ["TRITON_INTERPRET"] = "1"
    for name in [name for name in sys.modules if name.split(".")[0] == "triton"]:
        if not name.startswith("triton._C"):  # compiled code is loaded once per process
            del sys.modules[name]
    from triton.runtime import interpreter

    builder = interpreter.interpreter_builder
    if not builder.options.debug:
        builder.options = dataclasses.replace(builder.options, sanitize_overflow=False)
    replace, run = interpreter._patch_lang, interpreter.GridExecutor.__call__
    done: set[int] = set()

    def replace_once(function: FunctionType) -> Any:
        if id(function.__globals__) in done:
            return None
        done.add(id(function.__globals__))
        return replace(function)

    def run_kernel(self: Any, *given: Any, **named: Any) -> Any:
        done.clear()
        return run(self, *given, **named)

    interpreter._patch_lang = replace_once
    interpreter.GridExecutor.__call__ = run_kernel


def _fault() -> str:
    """Why nothing can be said about kernels here, if so. Triton before the fix of its issue 9171
    turns arrays of one number into a Python number as numpy 2.4 no longer allows."""
    global tl
    import numpy as np
    import triton
    import triton.language as tl

    @triton.jit
    def count(n: int) -> None:
        for _ in range(tl.program_id(0) + n):
            pass

    try:
        count[(1,)](2)
    except Exception as error:
        if "only 0-dimensional arrays can be converted" not in str(error):
            raise
        return (
            f"the interpreter of Triton {triton.__version__} fails under numpy {np.__version__} "
            "(triton-lang/triton#9171): use a later Triton, or numpy below 2.4"
        )
    return ""


def run_script(script: Path, *arguments: str) -> str:
    """What it prints. Skips the test where the script finds the interpreter unusable."""
    pytest.importorskip("triton", reason="Triton is not installed: its kernels are not tested")
    said = warm.run([script, *arguments])
    if said.startswith(UNUSABLE):
        pytest.skip(said.removeprefix(UNUSABLE).strip())
    return said
