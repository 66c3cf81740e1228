"""Settings are in pyproject.toml. Here: a wheel that carries the native engine, on request.

``NATURAL_LANGEVIN_PREBUILD=1 python -m build --wheel`` compiles the engine into the wheel, which
then belongs to this platform. Without it the wheel is the same everywhere, and the engine is
compiled on first use.
"""

import importlib.util
import os
from pathlib import Path

from setuptools import setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py
from setuptools.dist import Distribution

PREBUILD = os.environ.get("NATURAL_LANGEVIN_PREBUILD") == "1"
NATIVE = Path("natural_langevin/execution/kernels/native")


class BuildWithEngine(build_py):
    """Compiles the engine beside the copied sources."""

    def run(self) -> None:
        super().run()
        folder = Path(self.build_lib) / NATIVE
        spec = importlib.util.spec_from_file_location("compiler", folder / "compiler.py")
        compiler = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(compiler)
        for dtype in ("float32", "float64"):
            compiler.build(folder / compiler.prebuilt_name(dtype), dtype, tune=compiler.PORTABLE)


class PlatformWheel(bdist_wheel):
    """The library is called through ctypes: any Python 3 of this platform will do."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


class PlatformDistribution(Distribution):
    """Its wheel is not for every platform."""

    def has_ext_modules(self) -> bool:
        return True


if PREBUILD:
    commands = {"build_py": BuildWithEngine, "bdist_wheel": PlatformWheel}
    setup(cmdclass=commands, distclass=PlatformDistribution)
else:
    setup()
