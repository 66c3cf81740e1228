"""docs/launchers.md on two processes: one chain, that of a plain loop with both batches as one.

Its code on one process is run with all pages' (tests/docs/test_examples.py), bits compared."""

from __future__ import annotations

import re
import socket
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch

import warm
from natural_langevin import Posterior

PAGE = (Path(__file__).parents[2] / "docs" / "launchers.md").read_text()
BLOCKS = re.findall(r"^```(python|py)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
SCRIPT = BLOCKS[0][1]

pytestmark = pytest.mark.filterwarnings("ignore")  # of packages that are not ours


def block(title: str) -> str:
    """The code under a heading."""
    (found,) = [
        code
        for _, code in BLOCKS
        if PAGE.rpartition(code)[0].rpartition("\n## ")[2].startswith(title)
    ]
    return found


def alone(batch_size: int) -> tuple[Any, Posterior]:
    """The page's loop without anything around it."""
    names: dict[str, Any] = {"__name__": "page"}
    exec(SCRIPT, names)
    model, optimizer, collector, loader = names["parts"](batch_size)
    names["train"](model, optimizer, loader)
    return names["parts"]()[0], collector.posterior()


def assert_one_chain(of_two: Posterior, of_one: Posterior) -> None:
    """Up to the order of sums: gradients of two halves are averaged."""
    assert of_two.draws == of_one.draws == 2
    for name, value in of_one.samples.items():
        torch.testing.assert_close(of_two.samples[name], value, rtol=1e-4, atol=1e-5)
        assert not torch.equal(value[:, 0], value[:, 1])


@pytest.mark.thorough  # on one process: tests/docs/test_examples.py
@pytest.mark.parametrize("title", ["Accelerate", "Lightning Fabric"])
def test_two_processes_are_one_chain(title: str, tmp_path: Path) -> None:
    pytest.importorskip({"Accelerate": "accelerate", "Lightning Fabric": "lightning"}[title])
    code = block(title).replace("devices=1", 'devices=2, strategy="ddp"')
    # The page's batch is half of that of two processes.
    code = "\n".join(line for line in code.splitlines() if not line.startswith("assert"))
    script = tmp_path / "script.py"
    script.write_text(
        "import os, sys, warnings\nwarnings.simplefilter('ignore')\n" + SCRIPT + code
        + "\nassert torch.distributed.get_world_size() == 2\n"
        + "if os.environ['RANK'] == '0':\n    posterior.save(sys.argv[1])\n"
    )  # fmt: skip
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    with tempfile.TemporaryFile("w+") as said, open("/dev/null") as nothing:
        processes = [
            warm.start(
                [script, tmp_path / "posterior"], stdin=nothing, stdout=said, stderr=said,
                environment={
                    "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2",
                    "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "0", "MASTER_ADDR": "127.0.0.1",
                    "MASTER_PORT": port, "TORCHELASTIC_RUN_ID": "test",
                    "CUDA_VISIBLE_DEVICES": "",
                },
            )
            for rank in range(2)
        ]  # fmt: skip
        codes = [process.wait(timeout=120) for process in processes]
        said.seek(0)
        assert codes == [0, 0], said.read()
    model, expected = alone(100)
    assert_one_chain(Posterior.load(tmp_path / "posterior", model), expected)


@pytest.mark.thorough
def test_ray_train() -> None:
    """Two workers, each in a process of Ray's, which gives every second row to each."""
    ray = pytest.importorskip("ray")
    pytest.importorskip("ray.train.torch")
    names: dict[str, Any] = {"__name__": "__main__"}
    ray.init(num_cpus=3, include_dashboard=False, log_to_driver=False)
    try:
        exec(SCRIPT + block("Ray Train"), names)
    finally:
        ray.shutdown()
    assert_one_chain(names["posterior"], alone(100)[1])
