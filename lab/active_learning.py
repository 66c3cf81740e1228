"""Which labels to buy: why BALD loses to random at first, and labels to 95 % on MNIST.

    python -m lab.active_learning digits --out results/active-learning-digits.json        (CPU)
    python -m lab.active_learning mnist --out results/active-learning-mnist.json --jobs 9 (GPU)

``digits`` is one round of docs/recipes/active_learning.md, 40 labels and then 20 more, by rule and
by how long the posterior was sampled. ``mnist`` is the protocol of batchbald_redux: two labels of
every class, then five at a time, with its network of two convolutions; once with its dropout
(Adam, 384 minibatches of 64 from new weights in every round, 128 masks), once without dropout and
with the posterior of its weights under the recipe's prior, and once with the posterior of its last
layer, the others trained on the images alone, without a label: two distorted views of an image
shall be alike and those of others not (SimCLR's loss). For comparison, its dropout from the same
weights. All choose by BatchBALD among the same images.
"""

from __future__ import annotations

import functools
import itertools
import math
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lab.command import add_device, study
from lab.results import complete
from natural_langevin import (
    Langevin,
    Posterior,
    data,
    likelihoods,
    metrics,
    models,
    preconditioners,
    priors,
)

# Digits -------------------------------------------------------------------------------------------

#: Steps, burn-in and thinning: the page's own, and those of a chain that has forgotten its start.
LENGTHS = {"short": (150, 75, 5), "long": (3000, 1000, 40)}
RULES = ("random", "bald", "bald, 4 x 5", "batch bald")
FORTY = "40 labels"


def digits_posterior(labelled: Tensor, seed: int, length: str) -> Any:
    """The page's ``fit``, of this length."""
    known = data.digits()
    sampler = Langevin(
        models.mlp(64, 10, (32,)), likelihoods.Categorical(), prior=priors.Gaussian(variance=1.0),
        preconditioner=preconditioners.QuasiDiagonalFisher(damping=1e-2), step_size=1e-2, chains=4,
        init="fan_in", seed=seed,
    )  # fmt: skip
    steps, burn_in, thin = LENGTHS[length]
    rows = known.train_x[labelled], known.train_y[labelled]
    return sampler.sample(
        rows, steps=steps, batch_size=len(labelled), burn_in=burn_in, thin=thin, progress=False
    )


def bald(samples: Tensor, labelled: Tensor, count: int) -> Tensor:
    """The inputs of largest mutual information of label and weights, each by itself."""
    score = metrics.bald(samples)
    score[labelled.cpu()] = -1
    return score.topk(count).indices.to(labelled.device)


def together(samples: Tensor, labelled: Tensor, count: int, among: int = 400) -> Tensor:
    """BatchBALD among the inputs of largest BALD."""
    some = bald(samples, labelled, among)
    return some[metrics.batch_bald(samples[:, some].cpu(), count)[0].to(some.device)]


@functools.cache
def first_forty(seed: int, length: str) -> tuple[Tensor, Any]:
    """The labels to begin with, and their posterior."""
    first = torch.randperm(1437, generator=torch.Generator().manual_seed(seed))[:40]
    return first, digits_posterior(first, seed, length)


def digits_row(seed: int, length: str, rule: str) -> dict[str, Any]:
    """Held-out NLL after 60 labels by a rule, and how alike the twenty are; or after the first."""
    known = data.digits()
    first, before = first_forty(seed, length)
    row: dict[str, Any] = {"seed": seed, "length": length, "rule": rule}
    if rule == FORTY:
        mean = before.predict(known.test_x, calibrated=False).mean
        return row | {"nll": float(metrics.nll(mean, known.test_y))}
    samples = before.predict(known.train_x, calibrated=False).samples
    new = torch.tensor([], dtype=torch.long)
    if rule == "random":
        order = torch.randperm(1437, generator=torch.Generator().manual_seed(40 + seed))
        new = order[~torch.isin(order, first)][:20]
    elif rule == "bald, 4 x 5":
        for _ in range(4):
            new = torch.cat([new, bald(samples, torch.cat([first, new]), 5)])
            after = digits_posterior(torch.cat([first, new]), seed, length)
            samples = after.predict(known.train_x, calibrated=False).samples
    else:
        new = (bald if rule == "bald" else together)(samples, first, 20)
    after = digits_posterior(torch.cat([first, new]), seed, length)
    p = after.predict(known.test_x, calibrated=False).mean
    chosen = known.train_x[new]
    apart = torch.cdist(chosen, chosen) + 1e9 * torch.eye(20)
    return row | {
        "nll": float(metrics.nll(p, known.test_y)),
        "accuracy": float((p.argmax(1) == known.test_y).double().mean()),
        "classes": len(set(known.train_y[new].tolist())),
        "nearest": float(apart.min(1).values.mean()),
    }


# MNIST --------------------------------------------------------------------------------------------

POOL, NETWORKS, GOAL, MOST, FIVE = 20_000, 128, 0.95, 250, 5
WAYS = (
    "dropout, batch bald", "pretrained, batch bald", "pretrained dropout, batch bald",
    "pretrained, random", "posterior, batch bald",
)  # fmt: skip
#: Steps without labels, and images of each.
PRETRAINING, PRETRAINING_BATCH = 4000, 256


class Convolutions(nn.Module):
    """The network of batchbald_redux: two convolutions of 5 x 5, and a layer of 128."""

    def __init__(self, rate: float = 0.0) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 32, 5), nn.Conv2d(32, 64, 5)
        self.fc1, self.fc2 = nn.Linear(1024, 128), nn.Linear(128, 10)
        self.rate = rate

    def features(self, x: Tensor) -> Tensor:
        h = F.relu(F.max_pool2d(self._drop(self.conv1(x), whole=True), 2))
        h = F.relu(F.max_pool2d(self._drop(self.conv2(h), whole=True), 2))
        return self._drop(self.fc1(h.flatten(1)), whole=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(F.relu(self.features(x)))

    def _drop(self, h: Tensor, *, whole: bool) -> Tensor:
        if not self.rate:
            return h
        return (F.dropout2d if whole else F.dropout)(h, self.rate, training=True)


def views(x: Tensor) -> Tensor:
    """Each image turned, sheared, stretched and moved a little, at random."""
    turn, shear, size, stretch, right, down = (
        (2 * torch.rand(6, len(x), device=x.device) - 1).T
        * torch.tensor([0.35, 0.3, 0.2, 0.15, 0.2, 0.2], device=x.device)
    ).T
    size, stretch = 1 + size, 1 + stretch
    above = torch.stack([turn.cos() * size * stretch, shear - turn.sin() * size, right], 1)
    below = torch.stack([turn.sin() * size, turn.cos() * size / stretch, down], 1)
    grid = F.affine_grid(torch.stack([above, below], 1), list(x.shape), align_corners=False)
    dark = x.min()
    return F.grid_sample(x - dark, grid, align_corners=False) + dark


def pretrained(x: Tensor, seed: int, steps: int, batch: int) -> dict[str, Tensor]:
    """Weights of a network that tells images apart whatever the view (Chen et al. 2020), with
    features of mean square 1; its last layer is zero. No label is seen."""
    torch.manual_seed(seed)
    net = Convolutions().to(x.device)
    head = nn.Sequential(nn.ReLU(), nn.Linear(128, 64)).to(x.device)
    optimizer = torch.optim.Adam([*net.parameters(), *head.parameters()])
    rate = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=steps)
    other = torch.arange(2 * batch, device=x.device).roll(batch)
    for _ in range(steps):
        rows = x[torch.randint(len(x), (batch,), device=x.device)]
        z = F.normalize(head(net.features(torch.cat([views(rows), views(rows)]))), dim=1)
        alike = (z @ z.T / 0.2).fill_diagonal_(-1e9)
        optimizer.zero_grad()
        F.cross_entropy(alike, other).backward()
        optimizer.step()
        rate.step()
    with torch.no_grad():
        size = F.relu(net.features(x[:2000])).square().mean().sqrt()
        for value in net.fc1.parameters():
            value /= size
        for value in net.fc2.parameters():
            value.zero_()
    return {name: value.detach().clone() for name, value in net.named_parameters()}


def by_dropout(
    x: Tensor, y: Tensor, seed: int, start: dict[str, Tensor] | None = None
) -> Callable[[Tensor], Tensor]:
    """A network trained anew; images -> class probabilities, (mask, image, class)."""
    torch.manual_seed(seed)
    net = Convolutions(0.5).to(x.device)
    if start is not None:
        net.load_state_dict(start)
    optimizer = torch.optim.Adam(net.parameters())
    for _ in range(4096 * 6 // 64):
        rows = torch.randint(len(x), (64,), device=x.device)
        optimizer.zero_grad()
        F.cross_entropy(net(x[rows]), y[rows]).backward()
        optimizer.step()

    @torch.no_grad()
    def predict(images: Tensor) -> Tensor:
        # A mask for all images of a draw, as "consistent" dropout has it: joint entropies need it.
        found = []
        for draw in range(NETWORKS):
            fork = [images.device] if images.is_cuda else []
            parts = []
            for part in images.split(10_000):
                with torch.random.fork_rng(fork):
                    torch.manual_seed(1000 * seed + draw)
                    masks = [
                        (torch.rand(size, device=images.device) > 0.5).float() * 2
                        for size in (32, 64, 128)
                    ]
                parts.append(_masked(net, part, masks).softmax(1))
            found.append(torch.cat(parts))
        return torch.stack(found)

    return predict


def _masked(net: Convolutions, x: Tensor, masks: list[Tensor]) -> Tensor:
    """One network of the dropout's: the same units are left out for all images."""
    h = F.relu(F.max_pool2d(net.conv1(x) * masks[0][:, None, None], 2))
    h = F.relu(F.max_pool2d(net.conv2(h) * masks[1][:, None, None], 2))
    return net.fc2(F.relu(net.fc1(h.flatten(1)) * masks[2]))


def by_posterior(x: Tensor, y: Tensor, seed: int, steps: int) -> Callable[[Tensor], Tensor]:
    """The posterior of the recipe's defaults; images -> class probabilities."""
    torch.manual_seed(seed)
    sampler = Langevin(Convolutions(), likelihoods.Categorical(), chains=8, seed=seed,
                       device=x.device)  # fmt: skip
    return predictor(sampler.sample((x, y), steps, keep=NETWORKS // 8, progress=False))


@torch.no_grad()
def features(weights: dict[str, Tensor], x: Tensor) -> Tensor:
    """What the last layer of a network with these weights is given."""
    net = Convolutions().to(x.device)
    net.load_state_dict(weights)
    return torch.cat([F.relu(net.features(part)) for part in x.split(2000)])


def by_last_layer(x: Tensor, y: Tensor, seed: int, steps: int) -> Callable[[Tensor], Tensor]:
    """The posterior of the last layer on features ``x`` of size 1, under N(0, 1): a narrower prior,
    as N(0, 2 / fan-in), is hardly moved by few labels."""
    sampler = Langevin(
        nn.Linear(x.shape[1], 10), likelihoods.Categorical(), prior=priors.Gaussian(variance=1.0),
        chains=8, seed=seed, device=x.device,
    )  # fmt: skip
    return predictor(sampler.sample((x, y), steps, keep=NETWORKS // 8, progress=False))


def predictor(posterior: Posterior) -> Callable[[Tensor], Tensor]:
    """Images -> class probabilities (network, image, class), not calibrated."""

    def predict(images: Tensor) -> Tensor:
        parts = images.split(10_000)
        found = [posterior.predict(part, calibrated=False).samples for part in parts]
        return torch.cat([f for f in found if f is not None], 1)

    return predict


def mnist_run(
    way: str, seed: int, *, device: str, steps: int, most: int, pool: int, test: int,
    seconds: float,
) -> dict[str, Any]:  # fmt: skip
    """Accuracy on the test images after every round, until three in a row are at the goal."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    began = time.perf_counter()
    known = data.mnist()
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(known.train_x), generator=generator)[:pool]

    def images(x: Tensor) -> Tensor:
        return ((x.reshape(-1, 1, 28, 28) - 0.1307) / 0.3081).to(device)

    x, y = images(known.train_x[order]), known.train_y[order].to(device)
    test_x, test_y = images(known.test_x[:test]), known.test_y[:test].to(device)
    labelled = torch.cat([(y == c).nonzero().flatten()[:2] for c in range(10)])
    rounds = []
    start = None
    if way.startswith("pretrained"):
        start = pretrained(x, seed, PRETRAINING, PRETRAINING_BATCH)
        if "dropout" not in way:
            # One layer of 1,290 weights: the native engine's, whatever trained the features.
            x, test_x = features(start, x).cpu(), features(start, test_x).cpu()
            y, test_y, labelled = y.cpu(), test_y.cpu(), labelled.cpu()
    while True:
        known_x, known_y = x[labelled], y[labelled]
        if "dropout" in way:
            predict = by_dropout(known_x, known_y, seed, start)
        elif start is not None:
            predict = by_last_layer(known_x, known_y, seed, steps)
        else:
            predict = by_posterior(known_x, known_y, seed, steps)
        p = predict(test_x).mean(0)
        accuracy = float((p.argmax(1) == test_y).double().mean())
        nll = float(metrics.nll(p, test_y))
        rounds.append({
            "labels": len(labelled), "accuracy": accuracy, "nll": nll,
            "seconds": round(time.perf_counter() - began, 1),
        })  # fmt: skip
        print(way, seed, rounds[-1], flush=True)
        done = len(rounds) >= 3 and all(r["accuracy"] >= GOAL for r in rounds[-3:])
        if done or len(labelled) >= most or time.perf_counter() - began > seconds:
            break
        if way.endswith("random"):
            free = torch.randperm(len(x), generator=generator).to(device)
            new = free[~torch.isin(free, labelled)][:FIVE]
        else:
            new = together(predict(x), labelled, FIVE)
        labelled = torch.cat([labelled, new])
    first = next((r["labels"] for r in rounds if r["accuracy"] >= GOAL), None)
    return {"way": way, "seed": seed, "labels to 95 %": first, "rounds": rounds}


def main() -> None:
    parser = study(__doc__, jobs="runs")
    add_device(parser)
    parser.add_argument("what", choices=("digits", "mnist"))
    parser.add_argument("--seeds", type=int, default=None)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS)
    parser.add_argument("--steps", type=int, default=1000, help="of a posterior on MNIST")
    parser.add_argument("--most", type=int, default=MOST, help="labels at which a run ends")
    parser.add_argument("--pool", type=int, default=POOL)
    parser.add_argument("--test", type=int, default=10_000, help="fewer test images, to try it")
    parser.add_argument(
        "--seconds", type=float, default=math.inf, help="after which runs end as they are"
    )
    asked = parser.parse_args()
    seeds = range(asked.seeds or (10 if asked.what == "digits" else 3))
    if asked.what == "digits":
        items = itertools.product(seeds, LENGTHS, (*RULES, FORTY))
        by = ("seed", "length", "rule")
        complete(asked.out, {"lengths": LENGTHS}, items, digits_row, by=by, jobs=asked.jobs)
        return
    settings = {"steps": asked.steps, "pool": asked.pool, "networks": NETWORKS, "goal": GOAL}
    names = ("device", "steps", "most", "pool", "test", "seconds")
    work = functools.partial(mnist_run, **{name: getattr(asked, name) for name in names})
    complete(
        asked.out, settings, [(way, seed) for seed in seeds for way in asked.ways], work,
        by=("way", "seed"), jobs=asked.jobs, device=asked.device, seconds=asked.seconds,
    )  # fmt: skip


if __name__ == "__main__":
    main()
