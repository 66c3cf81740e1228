"""Whether a run without a given length is long enough: its chains agree, with enough draws."""

from __future__ import annotations

import torch

from natural_langevin.data.streams import Stream
from natural_langevin.posterior.draws import pooled_chains
from natural_langevin.posterior.plan import EndRule, OpenEnd
from natural_langevin.posterior.posterior import Posterior
from natural_langevin.run.phases import Phase

#: Of chains with more targets, such as checkpoints of a training, so many are looked at, the first
#: and the last among them.
TARGETS = 4
#: Short runs overrate effective draws: so many times as many are taken.
MARGIN = 1.5


def too_short(so_far: Posterior, stream: Stream, rule: EndRule) -> tuple[str, float]:
    """Why a run must continue, and how many times the draws it needs (``Diagnosis.unmixed``): by
    its mixing at some rows and around them."""
    x = stream.example()[0]
    rows = x[torch.linspace(0, len(x) - 1, min(rule.rows, len(x))).long()]
    alike = so_far.config.get("alike") or [0] * so_far.chains
    pooled = pooled_chains(so_far.config, so_far.healthy)
    kinds = sorted({alike[c] for c in pooled})
    some = torch.linspace(0, len(kinds) - 1, min(len(kinds), TARGETS)).long().unique()
    looks = (
        so_far.diagnose(rows, chains=[c for c in pooled if alike[c] == kinds[k]]) for k in some
    )
    return max((one.unmixed(rule.ess) for one in looks), key=lambda one: one[1])


def further(phase: Phase, times: float, end: OpenEnd) -> int:
    """Steps by which a phase goes on to so many ``times`` its draws, ``growth`` at most, if any are
    left."""
    if end.given or times <= 1:
        return 0
    more = (min(MARGIN * times, end.rule.growth) - 1) * (phase.steps - phase.burn_in)
    return min(round(more), end.most - phase.spent - phase.steps)
