"""Provenance: the versions and the user's code that a run was started with.

Settings do not tell that the body of a loss function or of a ``forward`` has changed. Its compiled
code does, whatever its comments and layout; so that is what is compared, between processes of the
same Python version. Code of torch and of this library is known by its version.
"""

from __future__ import annotations

import hashlib
import logging
import platform
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import torch
from torch import nn

from natural_langevin._internal.fingerprints import stable_repr
from natural_langevin._internal.version import __version__

#: What follows from the rest, and is noted for whoever reads it.
DERIVED = {"plan"}


def differing(*settings: Mapping[str, Any]) -> list[str]:
    """The names whose values are not the same in all of ``settings``; a missing one is no value.

    >>> differing({"seed": 1, "steps": 10}, {"seed": 2, "steps": 10, "thin": 5})
    ['seed', 'thin']
    """
    names = dict.fromkeys(name for one in settings for name in one if name not in DERIVED)
    return [n for n in names if any(one.get(n) != settings[0].get(n) for one in settings[1:])]


def check_same_run(
    folder: Path,
    there: Mapping[str, Any],
    here: Mapping[str, Any],
    *,
    what: str,
    remedy: str,
    error: type[Exception],
) -> None:
    """Raises ``error`` if the run described in a folder is not the current one.

    It names all settings that differ, and both values of the first."""
    names = differing(here, there)
    if names:
        name, ours, theirs = names[0], here.get(names[0]), there.get(names[0])
        while isinstance(ours, dict) and isinstance(theirs, dict) and set(ours) == set(theirs):
            inner = differing(ours, theirs)[0]
            name, ours, theirs = f"{name} {inner}", ours[inner], theirs[inner]
        raise error(
            f"{folder} holds {what}: {', '.join(names)} differ ({name}: {_brief(theirs)} there, "
            f"{_brief(ours)} here). {remedy}"
        )


def _brief(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


log = logging.getLogger("natural_langevin")

_LIBRARIES = ("torch", "natural_langevin", "builtins", "typing", "abc")


def versions() -> dict[str, str]:
    """Of this library, torch and Python."""
    return {
        "natural_langevin": __version__,
        "torch": torch.__version__,
        "python": ".".join(platform.python_version_tuple()[:2]),
    }


def provenance(model: nn.Module, **parts: Any) -> dict[str, Any]:
    """What a checkpoint notes beside its settings: versions, and a digest of the code of every
    class of the model's modules and of the ``parts`` that somebody else wrote."""
    code: dict[str, str] = {}
    for module in model.modules():
        code |= _code_of_class(type(module))
        own = vars(module).get("forward")
        if isinstance(own, FunctionType):
            code["forward of a module"] = digest(own)
    for name, part in parts.items():
        code |= _code_of_class(type(part))
        functions = {k: v for k, v in getattr(part, "__dict__", {}).items() if callable(v)}
        for field, function in functions.items():
            if isinstance(function, FunctionType):
                code[f"{field} of the {name}"] = digest(function)
            else:
                code |= _code_of_class(type(function))
    return {"versions": versions(), "code": code}


def check_provenance(
    folder: Path, there: Mapping[str, Any], here: Mapping[str, Any], *, error: type[Exception]
) -> None:
    """Logs that a run continues with other versions; raises ``error`` if its code has changed.

    What an older version wrote notes nothing, and nothing is compared."""
    if not there or not here:
        return
    theirs, ours = there.get("versions") or {}, here["versions"]
    if changed := differing(theirs, ours):
        told = ", ".join(f"{n} {theirs.get(n)!s:.40} there and {ours.get(n)} here" for n in changed)
        log.warning(
            "the run in %s was started with other versions (%s): it continues, but the last bits "
            "of its results may differ",
            folder,
            told,
        )
    changed = differing(there.get("code") or {}, here.get("code", {}))
    if changed and theirs.get("python") == ours["python"]:
        raise error(
            f"{folder} holds a checkpoint made by different code: {', '.join(changed)} changed "
            "since the run was started. Restore that code, or start a new run in another folder"
        )


def digest(function: Any) -> str:
    """SHA-256 of what a function does, as far as its code and that of its helpers tell."""
    return hashlib.sha256("\n".join(_lines(function, set())).encode()).hexdigest()[:32]


def _code_of_class(cls: type) -> dict[str, str]:
    found = {}
    for base in cls.__mro__:
        if base.__module__.split(".")[0] in _LIBRARIES:
            continue
        for name, value in vars(base).items():
            function = getattr(value, "__func__", getattr(value, "fget", value))
            if isinstance(function, FunctionType):
                found[f"{base.__qualname__}.{name}"] = digest(function)
    return found


def _lines(function: Any, seen: set[int]) -> Iterator[str]:
    if not isinstance(function, FunctionType) or id(function) in seen:
        return
    seen.add(id(function))
    yield from _code_lines(function.__code__, function.__doc__)
    yield stable_repr((function.__defaults__, function.__kwdefaults__))
    for cell in function.__closure__ or ():
        try:
            value = cell.cell_contents
        except ValueError:  # not filled yet
            continue
        if isinstance(value, int | float | str | bool | None):
            yield repr(value)
        yield from _lines(value, seen)
    module = vars(sys.modules.get(function.__module__, sys))
    for name in function.__code__.co_names:  # helpers of the same file
        helper = module.get(name)
        if getattr(helper, "__module__", None) == function.__module__:
            yield from _lines(helper, seen)


def _code_lines(code: CodeType, doc: str | None = None) -> Iterator[str]:
    yield code.co_code.hex()
    yield repr((code.co_names, code.co_varnames, code.co_freevars))
    for index, constant in enumerate(code.co_consts):
        if index == 0 and (constant is None or constant == doc):
            continue  # the docstring, or its absence
        if isinstance(constant, CodeType):
            yield from _code_lines(constant)
        elif isinstance(constant, frozenset):
            yield repr(sorted(map(repr, constant)))
        else:
            yield repr(constant)
