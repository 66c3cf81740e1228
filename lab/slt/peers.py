"""Learning coefficients beside the ``devinterp`` package: same networks, same data, same target.

    pip install --no-deps "devinterp<2" einops cloudpickle  # in an environment of its own
    python -m lab.slt.peers --out results/slt-peers.json --count 12 --jobs 12

Its SGLD at every step size of a grid, with four chains of as many steps as ours takes (``MOST`` at
most), the prior precision GAMMA of both; the truth is by Hamiltonian Monte Carlo.
"""

from __future__ import annotations

import math
import time
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from lab.command import study
from lab.results import complete
from lab.slt.linear_networks import LinearNetwork, network, truth
from natural_langevin import likelihoods, priors, slt

GAMMA, BATCH = 10.0, 500
#: Steps of its chains at most: five times its default number of draws, and as many before them.
MOST = 1000
#: Step sizes of its SGLD.
GRID = (1e-6, 1e-5, 3e-5, 1e-4, 3e-4, 1e-3)


class Batches(DataLoader[tuple[Tensor, ...]]):
    """Shuffled minibatches, each looked up at once: rows one by one would be most of its time."""

    def __iter__(self) -> Any:
        data: Any = self.dataset
        for rows in torch.randperm(len(data)).split(self.batch_size or BATCH):
            yield [t[rows] for t in data.tensors]


def theirs(of: LinearNetwork, lr: float, steps: int) -> dict[str, Any]:
    """Its estimate at a step size, and the seconds that it took."""
    from devinterp.optim import SGLD
    from devinterp.slt.sampler import estimate_learning_coeff_with_summary

    x, y = of.x.float(), of.y.float()
    model = of.model()

    def loss(net: nn.Module, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        return (net(batch[0]) - batch[1]).square().sum(1).mean() / 2, {}

    with torch.no_grad():
        start = float(loss(model, (x, y))[0])
    loader = Batches(TensorDataset(x, y), batch_size=BATCH, shuffle=True)
    began = time.process_time()
    try:
        found = estimate_learning_coeff_with_summary(
            model, loader, evaluate=loss,
            sampling_method=SGLD, num_chains=4, num_draws=steps // 2, num_burnin_steps=steps // 2,
            optimizer_kwargs={"lr": lr, "localization": GAMMA, "nbeta": len(x) / math.log(len(x))},
            init_loss=start, seed=0, verbose=False,
        )  # fmt: skip
    except RuntimeError as error:  # its steps are too large
        return {"lr": lr, "failed": str(error), "seconds": time.process_time() - began}
    return {
        "lr": lr, "value": float(found["llc/mean"]), "spread": float(found["llc/std"]),
        "seconds": time.process_time() - began,
    }  # fmt: skip


def row(seed: int) -> dict[str, Any]:
    """One network by both."""
    of = network(seed)
    exact = truth(of, power=1 / math.log(len(of.x)), variance=1 / GAMMA)
    model, data = of.model(), (of.x.float(), of.y.float())
    began = time.process_time()
    ours = slt.llc(
        model, likelihoods.Gaussian(sigma=1.0), data,
        prior=priors.around(model, variance=1 / GAMMA),
    )  # fmt: skip
    seconds = time.process_time() - began
    steps = int(ours.posterior.config["steps"])
    return {
        "seed": seed, "widths": of.widths, "rank": of.rank, "exact": of.exact,
        "truth": exact._asdict(), "steps": steps,
        "ours": {"value": ours.value, "error": ours.error, "seconds": seconds},
        "theirs": [theirs(of, lr, min(steps, MOST)) for lr in GRID],
    }  # fmt: skip


def main() -> None:
    """Writes a row for every network."""
    parser = study(__doc__, jobs="networks")
    parser.add_argument("--count", type=int, default=12)
    given = parser.parse_args()
    settings = {"gamma": GAMMA, "batch": BATCH, "most": MOST}
    complete(given.out, settings, product(range(given.count)), row, by=("seed",), jobs=given.jobs)


if __name__ == "__main__":
    main()
