"""Whether a contender was compiled here before, so that the compiler's cache will be quick.

Inductor's cache cannot be asked. A note beside it says what this very code compiled with this very
torch; when somebody empties the cache folder, the note goes too.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import torch

import natural_langevin
from lab.speed.contender import Contender
from lab.speed.problems import Problem


def remember(problem: Problem, contender: Contender, seconds: float) -> None:
    """Note beside the compiler's cache that this step is compiled, and how long it took."""
    note = _note(problem, contender)
    note.parent.mkdir(parents=True, exist_ok=True)
    note.write_text(f"{contender.label}: {seconds:.1f} s\n")


def remembered(problem: Problem, contender: Contender) -> bool:
    """Whether this step was compiled before on this machine."""
    return _note(problem, contender).exists()


def _note(problem: Problem, contender: Contender) -> Path:
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    shape = [tuple(p.shape) for p in problem.build().parameters()]
    what = f"{torch.__version__} {problem.device} {problem.batch_size} {shape} {contender.label}"
    what += f" {torch.get_float32_matmul_precision()} {torch.get_num_threads()}"
    digest = hashlib.sha256(what.encode())
    for path in sorted(Path(natural_langevin.__file__).parent.rglob("*.py")):
        if "bench" not in path.parts:
            digest.update(path.read_bytes())
    return Path(cache_dir()) / "natural_langevin_bench" / digest.hexdigest()[:32]
