"""Run by torchrun on every rank: FSDP2 networks against the same run in one process."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict, get_optimizer_state_dict
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard

from natural_langevin import likelihoods, preconditioners, priors
from natural_langevin.optim import NaturalLangevin

STEPS, BATCH = 10, 6
METRICS = {
    "euclidean": (preconditioners.Euclidean(), 1e-2),
    "rmsprop": (preconditioners.RMSProp(), 1e-3),
    "diagonal": (preconditioners.DiagonalFisher(damping=1e-2), 1e-3),
    "quasi-diagonal": (preconditioners.QuasiDiagonalFisher(damping=1e-2), 1e-3),
}


class Plain(nn.Sequential):
    """Bags of tokens through two layers, whose rows do not divide among two ranks."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(7, 5), nn.ReLU(inplace=True), nn.Linear(5, 3))

    def forward(self, tokens: Tensor) -> Tensor:
        return super().forward(F.one_hot(tokens, 7).double().sum(1))


class Single(nn.Sequential):
    """One layer, for the metrics that treat every parameter by itself."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(7, 3))

    def forward(self, tokens: Tensor) -> Tensor:
        return super().forward(F.one_hot(tokens, 7).double().sum(1))


class Gated(nn.Module):
    """Tokens, a sequence, a norm, and a layer with fewer rows than ranks."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.mix, self.norm = nn.Embedding(7, 4), nn.Linear(4, 5), nn.LayerNorm(5)
        self.gate, self.head = nn.Linear(5, 1), nn.Linear(5, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        h = F.relu(self.norm(self.mix(self.embed(tokens))), inplace=True).mean(1)
        return self.head(h) * torch.tanh(self.gate(h))


def network(kind: type[nn.Module] = Gated) -> Any:
    torch.manual_seed(11)
    return kind().double()


def sharded(kind: type[nn.Module] = Gated) -> Any:
    model = network(kind)
    layers = [m for m in model.modules() if isinstance(m, nn.Embedding | nn.Linear)]
    for layer in layers[:-1]:
        fully_shard(layer)
    fully_shard(model)
    return model


def batch(step: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(step)
    x = torch.randint(0, 7, (BATCH, 4), generator=generator)
    return x, torch.randint(0, 3, (BATCH,), generator=generator)


def optimizer_of(model: nn.Module, name: str, **options: Any) -> NaturalLangevin:
    metric, lr = METRICS[name]
    options = {"prior": {"*.bias": priors.Gaussian(1.0), "*": priors.Gaussian(0.2)}} | options
    return NaturalLangevin(
        model, likelihoods.Categorical(), num_data=60, lr=lr, preconditioner=metric, seed=3,
        **options,
    )  # fmt: skip


def run(
    model: nn.Module, optimizer: NaturalLangevin, steps: int, rank: int | None, pieces: int = 1
) -> None:
    """The mean loss of every batch; a rank sees its own rows, in so many micro-batches."""
    for step in range(steps):
        x, y = batch(step)
        if rank is not None:
            x, y = x.chunk(2)[rank], y.chunk(2)[rank]
        optimizer.zero_grad()
        size = -(-len(x) // pieces)
        for a, b in zip(x.split(size), y.split(size), strict=True):
            (F.cross_entropy(model(a), b) * (len(a) / len(x))).backward()
        optimizer.step()


def compare(optimizer: NaturalLangevin, reference: NaturalLangevin | None) -> float:
    """The largest difference of parameters and running means, where there is a reference."""
    found = list(optimizer.sampled().values()) + list(optimizer.mean().values())
    assert all(f.to_local().numel() < f.numel() or f.shape[0] == 1 for f in found)
    whole = [f.full_tensor().detach() for f in found]
    if reference is None:
        return 0.0
    expected = list(reference.sampled().values()) + list(reference.mean().values())
    return max(float((w - e.detach()).abs().max()) for w, e in zip(whole, expected, strict=True))


def check_metric(kind: type[nn.Module], name: str, steps: int, rank: int, pieces: int = 1) -> Any:
    """A sharded run and, on the first rank, the same with the whole batch in one process."""
    model, reference = sharded(kind), None
    optimizer = optimizer_of(model, name)
    run(model, optimizer, steps, rank, pieces)
    if rank == 0:
        alone = network(kind)
        reference = optimizer_of(alone, name)
        run(alone, reference, steps, None)
        pairs = zip(alone.parameters(), network(kind).parameters(), strict=True)
        assert max(float((p - q).detach().abs().max()) for p, q in pairs) > 0.02, "it stood still"
    error = compare(optimizer, reference)
    assert error < 1e-10, f"{name}: {error}"
    if rank == 0:
        print(f"{kind.__name__}, {name}: {error:.1e} after {steps} steps", flush=True)
    return model, optimizer


def save(model: nn.Module, optimizer: NaturalLangevin, folder: Path) -> None:
    state = {
        "model": get_model_state_dict(model),
        "optimizer": get_optimizer_state_dict(model, optimizer),
    }
    dcp.save(state, checkpoint_id=folder / "checkpoint")


def check_unequal_ranks(rank: int) -> None:
    """Five samples on one rank and one on the other: sums add up, means do not."""
    model, alone = sharded(Plain), network(Plain)
    optimizer = optimizer_of(model, "quasi-diagonal", reduction="sum")
    reference = optimizer_of(alone, "quasi-diagonal")
    own = slice(0, 5) if rank == 0 else slice(5, 6)
    for step in range(5):
        x, y = batch(step)
        optimizer.zero_grad()
        F.cross_entropy(model(x[own]), y[own], reduction="sum").backward()
        optimizer.step()
    run(alone, reference, 5, None)
    error = compare(optimizer, reference)
    assert error < 1e-12, f"unequal ranks: {error}"
    model = sharded(Plain)
    optimizer = optimizer_of(model, "diagonal")
    F.cross_entropy(model(x[own]), y[own]).backward()
    refused(ValueError, "different numbers of samples", optimizer.step)


def check_means(rank: int) -> None:
    """A prior around given weights: every rank has the means of its own rows."""
    centre = {k: torch.full_like(p, 0.3).add_(torch.arange(p.numel()).reshape(p.shape) / 9)
              for k, p in network(Plain).state_dict().items()}  # fmt: skip
    prior = priors.around(centre, variance=0.001)
    model, alone = sharded(Plain), network(Plain)
    optimizer = optimizer_of(model, "diagonal", prior=prior)
    reference = optimizer_of(alone, "diagonal", prior=prior)
    run(model, optimizer, 5, rank)
    run(alone, reference, 5, None)
    error = compare(optimizer, reference)
    assert error < 1e-12, f"means of every weight: {error}"
    plain = network(Plain)
    run(plain, optimizer_of(plain, "diagonal"), 5, None)
    pairs = zip(alone.parameters(), plain.parameters(), strict=True)
    apart = [float((p - q).detach().abs().max()) for p, q in pairs]
    assert max(apart) > 1e-3, "the prior's means did nothing"
    if rank == 0:
        print(f"means of every weight: {error:.1e}", flush=True)


def check_replicas(rank: int) -> None:
    """DistributedDataParallel: the statistics are added up as the gradients are."""
    alone, inner = network(Plain), network(Plain)
    reference = optimizer_of(alone, "quasi-diagonal")
    model = nn.parallel.DistributedDataParallel(inner)
    optimizer = optimizer_of(model, "quasi-diagonal")
    run(model, optimizer, 5, rank)
    run(alone, reference, 5, None)
    for k, p in reference.sampled().items():
        torch.testing.assert_close(optimizer.sampled()[k], p, rtol=1e-12, atol=1e-12)


def refused(kind: type[Exception], text: str, function: Any) -> None:
    try:
        function()
    except kind as error:
        if text not in str(error):
            raise
        return
    raise AssertionError(f"not refused: {text}")


def check_refusals(rank: int) -> None:
    def make(model: nn.Module, **options: Any) -> NaturalLangevin:
        options = {"num_data": 60, "lr": 1e-3} | options
        return NaturalLangevin(model, likelihoods.Categorical(), **options)

    full = preconditioners.FullFisher()
    refused(ValueError, "sample by sample", lambda: make(sharded(), preconditioner=full))
    whole = priors.NormalInverseGamma()
    refused(ValueError, "looks at the whole tensor", lambda: make(sharded(), prior=whole))
    columns = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3))
    fully_shard(columns, shard_placement_fn=lambda p: Shard(p.ndim - 1))
    refused(ValueError, "only rows may be sharded", lambda: make(columns))
    half = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3))
    fully_shard(half[0])
    refused(TypeError, "apply fully_shard to the root", lambda: make(half))
    attention = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)
    fully_shard(attention)
    keep = make(attention)  # hooks live as long as the optimizer does
    refused(NotImplementedError, "register a rule", lambda: attention(torch.randn(2, 3, 4)))
    assert keep.steps == 0
    model = sharded(Plain)
    optimizer = make(model)
    x, y = batch(0)
    loss = F.cross_entropy(model(x), y)
    (loss * (float("nan") if rank == 1 else 1.0)).backward()  # one rank alone
    refused(RuntimeError, "is not finite; the parameters were left", optimizer.step)


def check_posterior(rank: int) -> None:
    model = sharded()
    optimizer = optimizer_of(model, "diagonal")
    collector = optimizer.collector(thin=2)
    run(model, optimizer, 4, rank)
    refused(ValueError, "is sharded: give posterior(model)", collector.posterior)
    refused(ValueError, "with optimizer.at_mean()", optimizer.mean_network)
    with optimizer.at_mean():
        torch.testing.assert_close(
            model.mix.weight.full_tensor(), optimizer.mean()["mix.weight"].full_tensor()
        )
    posterior = collector.posterior(network())
    probabilities = posterior.predict(batch(0)[0]).mean
    torch.testing.assert_close(probabilities.sum(1), torch.ones(BATCH, dtype=torch.float64))
    assert posterior.draws == 2


def main(folder: Path) -> None:
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    rank = dist.get_rank()
    for name in METRICS:
        check_metric(Plain if name == "quasi-diagonal" else Single, name, STEPS, rank)
    save(*check_metric(Gated, "quasi-diagonal", 10, rank, pieces=2), folder)
    check_unequal_ranks(rank)
    check_means(rank)
    check_replicas(rank)
    check_refusals(rank)
    check_posterior(rank)
    dist.barrier()
    dist.destroy_process_group()
    print(f"rank {rank} is done", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
