"""A posterior whose chains are on several processes."""

from __future__ import annotations

import logging

import torch

from natural_langevin.distributed.process_mesh import ProcessMesh
from natural_langevin.posterior.chain_shards import ChainShards
from natural_langevin.posterior.posterior import Posterior

log = logging.getLogger("natural_langevin")


def shard_posterior(posterior: Posterior, mesh: ProcessMesh) -> Posterior:
    """The posterior of this process's chains becomes that of all chains.

    One number per chain (when it diverged, what its likelihood learned, its losses) goes to every
    process; ``samples``, ``mean`` and ``last`` stay where they are. Processes that share
    minibatches must have the same last iterates: they compare sums of them."""
    sums = torch.stack([v.double().flatten(1).sum(1) for v in posterior.last.values()]).nan_to_num()
    if not mesh.same_everywhere(sums):
        log.warning(
            "processes that share minibatches now hold different parameters: are their devices "
            "of different types? Use Layout(chains=...), so that only equal devices share "
            "minibatches"
        )
    posterior.diverged = mesh.gather_chains(posterior.diverged)
    posterior.learned = {k: mesh.gather_chains(v) for k, v in posterior.learned.items()}
    steps, losses = posterior.trace[:, :1], posterior.trace[:, 1:].T.contiguous()
    posterior.trace = torch.cat([steps, mesh.gather_chains(losses).T], dim=1)
    posterior.shards = ChainShards(mesh)
    return posterior
