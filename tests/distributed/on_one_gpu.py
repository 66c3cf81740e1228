"""For a machine with a GPU: the same code with NCCL and one process. Not part of the suite.

    PYTHONPATH=src python -m torch.distributed.run --standalone --nproc-per-node 1 \
        tests/distributed/on_one_gpu.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from parallel_checks import classes, make, network

from natural_langevin import Posterior, preconditioners
from natural_langevin.distributed import Layout

SINGLE = torch.float32


def main() -> None:
    """A layout that is asked for exchanges even with itself; "auto" with one process does not."""
    x, y = classes(dtype=SINGLE)
    run = {"steps": 300, "batch_size": 7, "burn_in": 100, "thin": 10, "progress": False}
    for metric in (preconditioners.QuasiDiagonalFisher(), preconditioners.FullFisher(damping=0.01)):
        options = {"model": network(dtype=SINGLE), "device": "cuda", "chains": 2}
        options["preconditioner"] = metric
        alone = make(None, **options).sample((x, y), **run)
        for compiled in (False, True):
            for layout in ("auto", Layout(chains=1, data=1)):
                found = make(layout, compile=compiled, **options).sample((x, y), **run)
                gap = max(float((v - alone.last[k]).abs().max()) for k, v in found.last.items())
                answer = float((found.predict(x).mean - alone.predict(x).mean).abs().max())
                mesh = found.processes
                print(
                    f"{metric!r:.20} compiled={compiled} {layout}: largest difference {gap:.1e}, "
                    f"of predictions {answer:.1e}; exchange: {mesh.data is not None}, "
                    f"{dist.get_backend()}, {mesh.device}"
                )
                assert gap < 1e-3
                with tempfile.TemporaryDirectory() as folder:
                    found.save(Path(folder))
                    loaded = Posterior.load(folder, network(dtype=SINGLE))
                    assert all(
                        torch.equal(v, found.samples[k].cpu()) for k, v in loaded.samples.items()
                    )


if __name__ == "__main__":
    main()
