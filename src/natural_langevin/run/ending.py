"""Whether a run without a given length is long enough: its chains agree, with enough draws."""

from __future__ import annotations

import torch

from natural_langevin.data.streams import Stream
from natural_langevin.posterior.plan import EndRule
from natural_langevin.posterior.posterior import Posterior


def too_short(so_far: Posterior, stream: Stream, rule: EndRule) -> str:
    """The reason why a run must continue, or "": by its mixing at some rows and around them, as in
    ``posterior.diagnose``."""
    x = stream.example()[0]
    rows = x[torch.linspace(0, len(x) - 1, min(rule.rows, len(x))).long()]
    return so_far.diagnose(rows).unmixed(rule.ess)
