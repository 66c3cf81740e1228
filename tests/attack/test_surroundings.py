"""Clocks that jump, disks that execute nothing, packages that cannot be written, quotas."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

import natural_langevin
import small_run
from natural_langevin import Posterior
from natural_langevin._internal.tensorfile import WriteError
from small_run import assert_same, network, sample_until


@pytest.mark.parametrize("jump", [-1e9, 1e9, "back and forth"])
def test_a_clock_that_jumps_changes_nothing(tmp_path, monkeypatch, jump):
    """Of a run that is cut off and goes on; locks and deadlines follow the clock that cannot."""
    real, calls = time.time, [0]

    def jumping() -> float:
        calls[0] += 1
        return real() + (jump if isinstance(jump, float) else (-1) ** calls[0] * 1e8)

    run = {"checkpoint": tmp_path / "run", "store": tmp_path / "draws", "every": 2}
    sample_until(monkeypatch, 4, lambda: small_run.sample(**run))
    monkeypatch.setattr(time, "time", jumping)
    found = small_run.sample(**run)
    found.save(tmp_path / "saved")
    assert_same(small_run.sample(), Posterior.load(tmp_path / "saved", network()))


NOEXEC = """
mount -t tmpfs -o noexec tmpfs "$1" || exit 77
export TMPDIR="$1" NATURAL_LANGEVIN_CACHE="$1/cache"
exec "$2" "$3"
"""
SAMPLE = """
import small_run
print(small_run.sample().config["execution"])
"""


#: The package and all that it imports.
READ_ONLY = """
for folder in "$1" "$4" "$5"; do
  mount --bind "$folder" "$folder" && mount -o remount,ro,bind "$folder" || exit 77
  touch "$folder/written" 2>/dev/null && exit 1
done
exec "$2" "$3"
"""
needs_root = pytest.mark.skipif(
    shutil.which("unshare") is None or os.geteuid() != 0, reason="needs root"
)


def sampled_under(folder: Path, mounts: str, *words: str | Path) -> subprocess.CompletedProcess:
    """What a process says that samples where other disks are mounted than here."""
    for name, text in (("mounts.sh", mounts), ("sample.py", SAMPLE)):
        (folder / name).write_text(text)
    (folder / "disk").mkdir()
    paths = [str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    done = subprocess.run(
        ["unshare", "-m", "sh", folder / "mounts.sh", folder / "disk", sys.executable,
         folder / "sample.py", *words],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    if done.returncode in (1, 77) and "mount" in done.stderr + done.stdout:
        pytest.skip("nothing can be mounted here")
    return done


@pytest.mark.thorough
@needs_root
def test_a_disk_that_executes_nothing(tmp_path):
    """Neither the cache nor the temporary folder: the general step serves, and that is said."""
    done = sampled_under(tmp_path, NOEXEC)
    assert done.stdout.split() == ["eager"], done.stderr
    assert done.stderr.count("no native engine (") == 1


@pytest.mark.thorough
@needs_root
def test_packages_that_cannot_be_written(tmp_path, monkeypatch):
    """Nothing of ours is kept beside the code."""
    monkeypatch.setenv("NATURAL_LANGEVIN_CACHE", str(tmp_path / "cache"))
    package = Path(natural_langevin.__file__).parent
    done = sampled_under(tmp_path, READ_ONLY, package, Path(torch.__file__).parents[1])
    assert done.stdout.split() == [small_run.sample().config["execution"]], done.stderr
    assert not done.stderr


def test_a_quota_leaves_what_was_there(tmp_path):
    """The largest size of a file stands for a quota: it is met in the middle of writing."""
    posterior = small_run.sample()
    posterior.save(tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, limits[1]))
    try:
        with pytest.raises(WriteError, match="What was saved there before is intact"):
            posterior.save(tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
