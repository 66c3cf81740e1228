"""Which chains predictions pool: healthy ones, of one posterior."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from natural_langevin._internal.whole_numbers import whole_number

Chains = Sequence[int] | Literal["all"] | None


def pooled_chains(config: Mapping[str, Any], chains: Iterable[int]) -> list[int]:
    """Those of ``chains`` that predictions pool: of a ladder whose chains swap, the ones at
    temperature 1 and power 1, for which the others are there; all where there is none."""
    chains = list(chains)
    if "exchange" not in config:
        return chains
    power = config.get("likelihood_power")
    cold = [c for c in chains if config["temperature"][c] == 1 and (not power or power[c] == 1)]
    return cold or chains


def chosen(chains: Chains, healthy: list[int], count: int, config: Mapping[str, Any]) -> list[int]:
    """The ``healthy`` ones among the ``chains`` of ``count`` that a caller asks for; None is all of
    one posterior (``config`` says which chains are alike), and "all" is all."""
    if chains is None or chains == "all":
        wanted = healthy if chains else pooled_chains(config, healthy)
        alike = config.get("alike") or [0] * count
        kinds = sorted({alike[c] for c in wanted})
        if chains is None and len(kinds) > 1:
            groups = [[c for c in wanted if alike[c] == kind] for kind in kinds]
            others = ", ".join(map(str, groups[1:4])) + (", ..." if len(groups) > 4 else "")
            raise ValueError(
                f"the chains have {len(kinds)} temperatures, powers or priors, and so as many "
                f"posteriors: choose with chains={groups[0]} (the others are {others}), or pool "
                'them anyway with chains="all"'
            )
    else:
        wanted = [whole_number("chains", c) for c in chains]
        beyond = [c for c in wanted if not 0 <= c < count]
        if beyond or not wanted:
            raise ValueError(f"chains must be among 0 .. {count - 1}, got {chains!r}")
        wanted = [c for c in wanted if c in healthy]
    if not wanted:
        raise ValueError("every chain diverged: there is nothing to predict with")
    return wanted
