"""Triton's interpreter, for scripts that run kernels in it, without the half of its time that it
spends on preparing what is prepared."""

from __future__ import annotations

import os
from types import FunctionType
from typing import Any


def start() -> None:
    """Before triton is imported by anything else: it decides then whether kernels are interpreted.

    The language is replaced by an interpreted one when a kernel starts, and again at every call of
    a function within it. Here the second is left out where the same module's was replaced before,
    by the same start of a kernel."""
    os.environ["TRITON_INTERPRET"] = "1"
    from triton.runtime import interpreter

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
