"""Everybody who takes part, one row each. The first is what all ratios divide by."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from lab.speed import ours, peers, plain
from lab.speed.contender import Contender, Ready
from lab.speed.problems import LARGE, SMALL
from natural_langevin.cli.experiments import bench

REFERENCE = "SGD, eager"
#: Networks that the peers' code here knows.
MLPS = ("mlp", *SMALL)

#: Networks that are measured in training loops of one's own too.
LOOPS = ("transformer", *LARGE)


def loop(build: Callable[..., bench.Way], **options: Any) -> Callable[..., Ready]:
    """One of the loops of ``natural-langevin bench``."""
    return partial(plain.as_in_bench, build=build, **options)


PLAIN = (
    Contender(REFERENCE, loop(bench.sgd), "torch.optim.SGD in a plain loop"),
    Contender(
        "SGD, compiled", plain.compiled_sgd,
        "the whole SGD step under torch.compile; on CUDA captured as a graph", compiled=True,
    ),
    Contender(
        "SGD + randn", loop(bench.sgld),
        "SGLD by hand: torch.optim.SGD with weight decay, plus torch.randn on every parameter",
    ),
    Contender("Adam, eager", loop(bench.adam), "torch.optim.Adam in a plain loop", networks=LOOPS),
)  # fmt: skip

PEERS = (
    Contender(
        "posteriors SGLD", loop(bench.posteriors), "posteriors.sgmcmc.sgld, eager",
        networks=(*MLPS, *LOOPS),
    ),
    Contender(
        "blackjax SGLD", peers.blackjax_sgld,
        "blackjax.sgld, jit of a scan over steps; vmapped where chains > 1",
        many_chains=True, networks=MLPS,
    ),
    Contender(
        "jax SGLD", peers.jax_sgld,
        "blackjax's formula written by hand in jax",
        many_chains=True, networks=MLPS,
    ),
    Contender("IVON", loop(bench.ivon), "ivon.IVON in a plain loop", networks=LOOPS),
)  # fmt: skip


#: The paper's names: its diagonal and quasi-diagonal outer products.
SHORT = {"DiagonalFisher": "DOP", "QuasiDiagonalFisher": "QDOP"}


def _ours(name: str, *, compile: bool | str = "auto", **options: Any) -> Contender:
    """``compile="auto"``, a user's default, has no word behind its name."""
    mode = {True: ", compiled", False: ", eager", "auto": ""}[compile]
    said = {"every": "every={}", "sharing": "{}"}
    title = " ".join([SHORT.get(name, name), *(said[k].format(v) for k, v in options.items())])
    given = ", ".join(f"{k}={v!r}" for k, v in options.items())
    return Contender(
        title + mode,
        partial(ours.langevin, name=name, compile=compile, **options),
        f"Langevin with preconditioners.{name}({given})",
        compiled=compile is True,
        ours=True,
        many_chains=compile is not False,  # eagerly they say nothing new and take long
    )


QDOP = _ours("QuasiDiagonalFisher")
QDOP_COMPILED = _ours("QuasiDiagonalFisher", compile=True)
QDOP_EAGER = _ours("QuasiDiagonalFisher", compile=False)
OURS = (
    _ours("Euclidean"), _ours("RMSProp"), _ours("DiagonalFisher"), QDOP,
    _ours("QuasiDiagonalFisher", every=4), QDOP_COMPILED, QDOP_EAGER,
)  # fmt: skip
#: For small networks.
FEW = (_ours("Euclidean"), QDOP, QDOP_EAGER)
#: For networks that use a weight at many positions.
SHARED = (
    _ours("Euclidean"),
    _ours("QuasiDiagonalFisher", sharing="exact"),
    _ours("QuasiDiagonalFisher", sharing="expand"),
    _ours("QuasiDiagonalFisher", sharing="exact", compile=True),
)


#: For a loop of one's own.
IN_A_LOOP = tuple(
    Contender(
        f"optimizer {SHORT.get(name, name)}",
        loop(bench.optimizer, name=SHORT.get(name, name)),
        f"optim.NaturalLangevin with preconditioners.{name}()",
        ours=True,
        networks=LOOPS,
    )
    for name in ("Euclidean", "RMSProp", "QuasiDiagonalFisher")
)


def contenders(network: str, chains: Sequence[int]) -> list[Contender]:
    """All rows for a network: those for one chain first, then what can advance several."""
    own = OURS if network == "mlp" else FEW if network in SMALL else SHARED
    everyone = [c for c in (*PLAIN, *PEERS, *own, *IN_A_LOOP) if network in c.networks]
    if network in SMALL:  # compiling is no matter of small networks
        everyone = [c for c in everyone if not c.compiled]
    rows = [c for c in everyone if 1 in chains or c.name == REFERENCE]
    for count in chains:
        if count > 1:
            rows += [replace(c, chains=count) for c in everyone if c.many_chains]
    return rows
