"""Everybody who takes part, one row each. The first is what all ratios divide by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from importlib.util import find_spec

from natural_langevin.experiments.speed import ours, peers, plain
from natural_langevin.experiments.speed.contender import Contender

REFERENCE = "SGD, eager"

PLAIN = (
    Contender(REFERENCE, plain.sgd, "torch.optim.SGD in a plain loop"),
    Contender(
        "SGD, compiled", plain.compiled_sgd,
        "the whole SGD step under torch.compile; on CUDA captured as a graph", compiled=True,
    ),
    Contender(
        "SGD + randn", partial(plain.sgd, noise=True),
        "SGLD by hand: torch.optim.SGD with weight decay, plus torch.randn on every parameter",
    ),
)  # fmt: skip

PEERS = (
    Contender(
        "posteriors SGLD", peers.posteriors_sgld, "posteriors.sgmcmc.sgld, eager", networks=("mlp",)
    ),
    Contender(
        "blackjax SGLD", peers.blackjax_sgld,
        "blackjax.sgld, jit of a scan over steps; vmapped where chains > 1",
        many_chains=True, networks=("mlp",),
    ),
    Contender(
        "jax SGLD", peers.jax_sgld,
        "blackjax's formula written by hand in jax, because blackjax is not installed",
        many_chains=True, networks=("mlp",),
    ),
)  # fmt: skip


#: The paper's names: its diagonal and quasi-diagonal outer products.
SHORT = {"DiagonalFisher": "DOP", "QuasiDiagonalFisher": "QDOP"}


def _ours(name: str, *, compile: bool = True, sharing: str | None = None) -> Contender:
    mode = "compiled" if compile else "eager"
    title = SHORT.get(name, name) + (f" {sharing}" if sharing else "")
    return Contender(
        f"{title}, {mode}",
        partial(ours.langevin, name=name, compile=compile, sharing=sharing),
        f"Langevin with preconditioners.{name}({f'sharing={sharing!r}' if sharing else ''})",
        compiled=compile,
        ours=True,
        many_chains=True,
    )


QDOP = _ours("QuasiDiagonalFisher")
QDOP_EAGER = _ours("QuasiDiagonalFisher", compile=False)
OURS = (
    _ours("Euclidean"), _ours("RMSProp"), _ours("DiagonalFisher"), QDOP,
    QDOP_EAGER,
)  # fmt: skip
#: For networks that use a weight at many positions.
SHARED = (
    _ours("Euclidean"),
    _ours("QuasiDiagonalFisher", sharing="exact"),
    _ours("QuasiDiagonalFisher", sharing="expand"),
)


def contenders(network: str, chains: Sequence[int]) -> list[Contender]:
    """All rows for a network: those for one chain first, then what can advance several."""
    everyone = [*PLAIN, *PEERS, *(OURS if network == "mlp" else SHARED)]
    if find_spec("blackjax") is not None or find_spec("jax") is None:
        everyone = [c for c in everyone if c.build is not peers.jax_sgld]
    everyone = [c for c in everyone if network in c.networks]
    rows = [c for c in everyone if 1 in chains or c.name == REFERENCE]
    for count in chains:
        if count > 1:
            # Eagerly, chains beyond the first say nothing new and take long.
            several = [c for c in everyone if c.many_chains and (c.compiled or not c.ours)]
            rows += [replace(c, chains=count) for c in several]
    return rows
