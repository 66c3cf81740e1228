"""DataLoaders: N is what they yield, and every chain has an order of its own."""

from __future__ import annotations

import logging

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from natural_langevin import Langevin, likelihoods, preconditioners, priors
from natural_langevin.data import SharedBatches
from natural_langevin.data.loaders import Loader, OwnOrders
from natural_langevin.data.streams import InMemory, as_stream

ROWS = TensorDataset(torch.arange(40.0)[:, None], torch.arange(40.0)[:, None])


class Pairs(Dataset):
    """The same rows, one by one."""

    def __init__(self, count: int = 40) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, row: int):
        return torch.tensor([float(row)]), torch.tensor([float(row)])


class Jittered(Pairs):
    """With noise, as of an augmentation."""

    def __getitem__(self, row: int):
        return torch.randn(1), torch.tensor([float(row)])


class Streamed(IterableDataset):
    """The same rows, with the length that is claimed."""

    def __init__(self, claimed: int) -> None:
        self.claimed = claimed

    def __len__(self) -> int:
        return self.claimed

    def __iter__(self):
        return (ROWS[row] for row in range(40))


class Halves(Sampler):
    """Other rows in every epoch."""

    def __init__(self) -> None:
        self.epoch = 0

    def __iter__(self):
        self.epoch += 1
        return iter(range(20 * (self.epoch % 2), 20 * (self.epoch % 2) + 20))

    def __len__(self) -> int:
        return 20


class Backwards(Sampler):
    def __iter__(self):
        return iter(range(39, -1, -1))

    def __len__(self) -> int:
        return 40


def sampler(**options) -> Langevin:
    usual = {
        "prior": priors.Gaussian(1.0),
        "preconditioner": preconditioners.Euclidean(),
        "step_size": 1e-4,
        "chains": 2,
    }
    return Langevin(nn.Linear(1, 1), likelihoods.Gaussian(sigma=1.0), **usual | options)


def number(loader, steps: int = 1, **options) -> float:
    posterior = sampler(**options).sample(loader, steps, progress=False)
    return posterior.config["num_data"]


def stream(loader, chains: int = 3, seed: int = 4):
    return as_stream(
        loader, batch_size=8, chain=torch.arange(chains), seed=seed, device=torch.device("cpu")
    )


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"sampler": SubsetRandomSampler(range(0, 40, 4))}, 10),
        ({"shuffle": True}, 40),
        ({"shuffle": True, "drop_last": True}, 40),  # another tail is dropped in every epoch
        ({"sampler": RandomSampler(ROWS, num_samples=16)}, 40),  # and other data come here
        ({"sampler": RandomSampler(ROWS, replacement=True)}, 40),
        ({"sampler": Backwards()}, 40),
        ({"batch_size": 64}, 40),
        ({"sampler": SubsetRandomSampler([3])}, 1),
    ],
    ids=["subset", "shuffle", "drop last", "part", "replacement", "own", "large batch", "one"],
)
def test_the_number_of_data_is_what_the_loader_yields(options: dict, expected: int) -> None:
    loader = DataLoader(ROWS, **{"batch_size": 8} | options)
    assert number(loader) == expected
    assert number(loader, num_data=77) == 77


@pytest.mark.parametrize(
    ("loader", "message"),
    [
        (
            DataLoader(ROWS, batch_size=8, sampler=WeightedRandomSampler([1.0] * 40, 40)),
            "WeightedRandomSampler: datum n then counts",
        ),
        (
            DataLoader(ROWS, batch_size=8, sampler=Halves()),
            "Halves gives different data in every ep",
        ),
        (
            DataLoader(ROWS, batch_sampler=[[0, 1], [1, 2]]),
            r"list gives data 1\.33 times per epoch",
        ),
        (
            DataLoader(ROWS, batch_sampler=[[0, 1, 2], [3, 4, 5, 6, 7]]),
            "list hold 3 to 5 data but have equal weight",
        ),
        (DataLoader([ROWS[:4]] * 10, batch_size=None), "counts batches, not data"),
        (
            SharedBatches(DataLoader(ROWS, batch_size=13)),
            "the same 1 data, each of which then counts 13 times",
        ),
        (
            SharedBatches(DataLoader(ROWS, batch_size=15, drop_last=True)),
            "last 10 of 40 data are never used",
        ),
        (DataLoader(ROWS, batch_size=15, sampler=Backwards()), "the same 10 data"),
    ],
    ids=["weighted", "halves", "twice", "unequal", "batches", "short", "dropped", "backwards"],
)
def test_batches_that_do_not_stand_for_the_data_are_refused_by_name(loader, message: str) -> None:
    with pytest.raises(ValueError, match=rf"{message}.*give Langevin\(\.\.\., num_data=N\)"):
        number(loader)
    assert number(loader, num_data=40) == 40


def test_what_is_sampled_in_spite_of_it_is_said(caplog: pytest.LogCaptureFixture) -> None:
    weighted = DataLoader(ROWS, batch_size=8, sampler=WeightedRandomSampler([1.0] * 40, 40))
    with caplog.at_level(logging.WARNING, logger="natural_langevin"):
        number(weighted, num_data=40)
    assert "WeightedRandomSampler" in caplog.text


def test_an_iterable_dataset_that_yields_another_number_is_noticed() -> None:
    assert number(DataLoader(Streamed(40), batch_size=8), steps=12) == 40
    for claimed in (10, 80):
        with pytest.raises(ValueError, match=rf"taken as {claimed}, but an epoch .* gave 40 rows"):
            number(DataLoader(Streamed(claimed), batch_size=8), steps=12)
    assert number(DataLoader(Streamed(10), batch_size=8), steps=12, num_data=40) == 40


def test_counting_leaves_generators_as_they_were() -> None:
    class Seeded(RandomSampler):
        """No sampler of torch's own, so that it is counted."""

    generator = torch.Generator().manual_seed(3)
    before, mine = torch.get_rng_state(), generator.get_state()
    loader = DataLoader(ROWS, batch_size=8, sampler=Seeded(ROWS, generator=generator))
    assert stream(loader).num_data == 40
    assert torch.equal(before, torch.get_rng_state())
    assert torch.equal(mine, generator.get_state())


@pytest.mark.parametrize("dataset", [ROWS, Pairs()], ids=["tensors", "one by one"])
def test_every_chain_has_the_order_of_data_in_memory(dataset) -> None:
    """The oracle is the in-memory stream, batch by batch; epochs of 5 batches."""
    own, memory = stream(DataLoader(dataset, batch_size=8)), stream(ROWS.tensors)
    assert isinstance(own, OwnOrders)
    assert isinstance(memory, InMemory)
    for step in (*range(12), 3, 4):  # and back again, as a probe may ask
        assert torch.equal(own.batch(step)[0], memory.batch(step)[0])
    assert torch.equal(own.example()[0][:, 0], torch.arange(8.0))


def test_workers_and_collate_of_the_loader_are_used() -> None:
    def collate(samples):
        x, y = torch.utils.data.default_collate(samples)
        return x + 100, y

    own = stream(DataLoader(Pairs(), batch_size=8, collate_fn=collate, num_workers=1))
    memory = stream(ROWS.tensors)
    for step in range(6):
        x, y = own.batch(step)
        assert torch.equal(x, y + 100)
        assert torch.equal(y, memory.batch(step)[1])


@pytest.mark.parametrize("workers", [0, 1])
def test_reading_leaves_the_global_generator_alone(workers: int) -> None:
    """Torch's loaders draw the seed of their workers from it, with or without workers."""
    before = torch.get_rng_state()
    own = stream(DataLoader(Pairs(), batch_size=8, num_workers=workers))
    own.example(), own.batch(0)
    assert torch.equal(before, torch.get_rng_state())


def test_augmentation_in_workers_is_that_of_the_run() -> None:
    """Whatever the state of the global generator; and a run that goes on has other noise."""
    found = []
    for seed, step in ((0, 3), (1, 3), (0, 4)):
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            own = stream(DataLoader(Jittered(), batch_size=8, num_workers=1))
            found.append(own.batch(step)[0])
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])


def test_who_shares_batches() -> None:
    def doubling(samples):
        x, y = torch.utils.data.default_collate(samples)
        return torch.cat([x, x]), torch.cat([y, y])

    assert isinstance(stream(DataLoader(Streamed(40), batch_size=8)), Loader)
    assert isinstance(stream(SharedBatches(DataLoader(ROWS, batch_size=8))), Loader)
    assert isinstance(stream(DataLoader(ROWS, batch_size=8, collate_fn=doubling)), Loader)
    batches = BatchSampler(SequentialSampler(ROWS), 8, drop_last=False)
    assert isinstance(stream(DataLoader(ROWS, batch_sampler=batches)), OwnOrders)
    posterior = sampler().sample(DataLoader(ROWS, batch_size=8), 3, progress=False)
    assert posterior.config["shared_batches"] is False
    posterior = sampler().sample(SharedBatches(DataLoader(ROWS, batch_size=8)), 3, progress=False)
    assert posterior.config["shared_batches"] is True


def test_a_run_on_a_loader_is_the_run_on_its_tensors() -> None:
    langevin = sampler()
    a = langevin.sample(ROWS, 12, batch_size=8, progress=False)
    b = langevin.sample(DataLoader(Pairs(), batch_size=8), 12, progress=False)
    for name, value in a.samples.items():
        torch.testing.assert_close(value, b.samples[name])


def test_the_law_of_a_subset_and_of_a_short_last_batch() -> None:
    """theta ~ N(0, 1), y ~ N(theta, 1): 100 of 1,000 rows leave 1/101 of variance; and one datum
    of 101, alone in its batch in the order of the dataset, moves the mean by 1/102 of it only.

    256 chains are independent, one draw of each: mean and variance to 5 standard errors of the
    exact law of the recursion, with H = 1 + 1/n and a batch's variance S^2/B (1 - B/n)."""
    chains, eta = 256, 0.2
    one = torch.ones(1000, 1, dtype=torch.float64)
    model = nn.Linear(1, 1, bias=False).double()
    y = torch.randn(1000, 1, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    subset = DataLoader(
        TensorDataset(one, y), batch_size=100, sampler=SubsetRandomSampler(range(100))
    )
    tail = y[:101].clone()
    tail[100] = 10.0
    last = DataLoader(TensorDataset(one[:101], tail), batch_size=100)
    for loader, target in ((subset, y[:100]), (last, tail)):
        langevin = Langevin(
            model, likelihoods.Gaussian(sigma=1.0), prior=priors.Gaussian(1.0), chains=chains,
            preconditioner=preconditioners.Euclidean(), step_size=eta,
        )  # fmt: skip
        theta = langevin.sample(loader, 50, burn_in=49, progress=False).last["weight"][:, 0, 0]
        n = len(target)
        h, batch = 1 + 1 / n, float(target.var()) / 100 * (1 - 100 / n)
        variance = (2 / n + eta * batch) / (h * (2 - eta * h))
        mean = float(target.sum()) / (n + 1)
        assert abs(float(theta.mean()) - mean) < 5 * (variance / chains) ** 0.5
        assert abs(float(theta.var()) / variance - 1) < 5 * (2 / chains) ** 0.5


class Arrays(Pairs):
    """Rows of NumPy's float64, as files and tables give them."""

    def __getitem__(self, row: int):
        return np.array([row / 40]), np.array([float(row)])


@pytest.mark.parametrize("data", [Arrays(), DataLoader(Arrays(), batch_size=10)])
def test_rows_of_float64_are_taken_in_the_networks_precision(data: object) -> None:
    sampler = Langevin(nn.Linear(1, 1), likelihoods.Gaussian(1.0), step_size=1e-3, chains=2)
    posterior = sampler.sample(data, steps=8, burn_in=4, batch_size=10, progress=False)
    assert posterior.samples["weight"].dtype == torch.float32
    assert len(posterior.healthy) == 2
    assert posterior.evaluate(data).nll > 0
