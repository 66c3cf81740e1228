"""Whether a run without a given length is long enough: its chains agree, with enough draws."""

from __future__ import annotations

import torch

from natural_langevin.data.streams import Stream
from natural_langevin.posterior.plan import EndRule
from natural_langevin.posterior.pooling import pooled_chains
from natural_langevin.posterior.posterior import Posterior

#: Of chains with more targets than this, such as the checkpoints of a training, so many are looked
#: at, the first and the last among them.
TARGETS = 4


def too_short(so_far: Posterior, stream: Stream, rule: EndRule) -> str:
    """The reason why a run must continue, or "": by its mixing at some rows and around them, as in
    ``posterior.diagnose``."""
    x = stream.example()[0]
    rows = x[torch.linspace(0, len(x) - 1, min(rule.rows, len(x))).long()]
    alike = so_far.config.get("alike") or [0] * so_far.chains
    pooled = pooled_chains(so_far.config, so_far.healthy)
    kinds = sorted({alike[c] for c in pooled})
    some = torch.linspace(0, len(kinds) - 1, min(len(kinds), TARGETS)).long().unique()
    looks = (
        so_far.diagnose(rows, chains=[c for c in pooled if alike[c] == kinds[k]]) for k in some
    )
    return next(filter(None, (one.unmixed(rule.ess) for one in looks)), "")
