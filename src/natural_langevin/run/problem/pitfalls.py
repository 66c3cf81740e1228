"""Mistakes that silently sample the wrong distribution: outputs detached from the parameters, and
an autocast around the sampler."""

from __future__ import annotations

import logging

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from natural_langevin._internal.chains import Params
from natural_langevin._internal.light_autograd import autograd_grad
from natural_langevin.statistics import Network

log = logging.getLogger("natural_langevin")


def refuse_autocast(device: torch.device) -> None:
    """An autocast around the run would round the sampler's own arithmetic, not only the network."""
    if torch.is_autocast_enabled(device.type):
        dtype = torch.get_autocast_dtype(device.type)
        raise ValueError(
            f"a sampler cannot run inside torch.autocast({device.type!r}, {dtype}): call it "
            f"outside, and give Langevin(..., autocast={dtype}) for a network in that precision"
        )


def check_attached(network: Network, params: Params, x: Tensor) -> None:
    """The outputs must depend on the parameters (of one chain, (*shape) each), as autograd sees it.

    Where they do not, all gradients are zero and the chain samples the prior."""
    try:
        # Tensors made in inference mode cannot have gradients: copies, made outside of it.
        with torch.inference_mode(False), torch.enable_grad():
            leaves = {k: p.detach().clone().requires_grad_() for k, p in params.items()}
            outputs = pytree.tree_leaves(network.call(leaves, x.detach().clone()))
            tied = [o for o in outputs if isinstance(o, Tensor) and o.requires_grad]
            reached: list[Tensor | None] = [None] * len(leaves)
            if tied:
                total = torch.stack([o.sum() for o in tied]).sum()
                reached = list(autograd_grad(total, list(leaves.values()), allow_unused=True))
    except RuntimeError:  # what autograd cannot do is said by other checks
        return
    cut = [name for name, g in zip(leaves, reached, strict=True) if g is None]
    if len(cut) == len(leaves):
        raise ValueError(
            "the network's output does not depend on any parameter as far as gradients go, so only "
            "the prior would be sampled: leave out detach(), .data, torch.no_grad() and .item() in "
            "its forward pass"
        )
    if cut:
        more = f" and {len(cut) - 3} others" if len(cut) > 3 else ""
        log.warning(
            "the output does not depend on %s%s: they are sampled from their prior only. Remove "
            "the detach(), or freeze them with requires_grad_(False)",
            ", ".join(map(repr, cut[:3])), more,
        )  # fmt: skip
