"""Checks of the data against the network and the likelihood, before the first step.

Mistakes that silently sample the wrong distribution: outputs detached from the parameters, and
an autocast around the sampler.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap
from torch.utils import _pytree as pytree

from natural_langevin._internal.chains import Params
from natural_langevin._internal.light_autograd import autograd_grad, vjp
from natural_langevin.data.checks import shown_to_model
from natural_langevin.data.loaders import Loader
from natural_langevin.data.streams import Stream
from natural_langevin.dynamics import State
from natural_langevin.statistics import Gradients, Network
from natural_langevin.statistics.selfcheck import check_statistics
from natural_langevin.statistics.vectorised import why_untransformable

log = logging.getLogger("natural_langevin")

#: Samples on which the network is tried out.
FEW = 4


def number_of_data(stream: Stream, num_data: float | None, chains: int) -> float:
    """N: the given ``num_data``, or the number of rows of the data. Batches that do not represent
    the data are refused, or cause a warning if N was given."""
    problem = stream.wrong or ("" if stream.num_data else stream.unknown)
    if num_data is None and problem:
        raise ValueError(
            f"{problem}: give Langevin(..., num_data=N) to sample with it anyway. N sets the "
            "weight of the prior and the size of the noise"
        )
    if num_data is not None and stream.wrong:
        log.warning("%s", stream.wrong)
    if isinstance(stream, Loader):
        stream.expected = stream.num_data if num_data is None else None
        if chains > 1:
            log.info(
                "the DataLoader's batches are shared by all %d chains, whose draws are then "
                "not independent", chains,
            )  # fmt: skip
    found = num_data or stream.num_data
    assert found is not None
    return found


def check_data(gradients: Gradients, state: State, x: Tensor, y: Tensor, targets: Tensor) -> None:
    """A batch (x, y), and all ``targets`` that are known, must fit the network and the likelihood.

    Afterwards ``gradients`` is prepared for batches of this shape. What is of the network alone is
    checked once: that takes longer than a small table's search."""
    likelihood, kind = gradients.likelihood, (tuple(x.shape[1:]), x.dtype)
    outputs = outputs_of_few(gradients.network, state.params, x)
    if kind not in gradients.checked:
        _check_axis_of_rows(outputs, outputs_of_few(gradients.network, state.params, x[:1]))
        check_network(gradients.network, state.params, x, outputs)
    likelihood.check(outputs, targets)
    few = y[:FEW]
    learned = {name: value[0] for name, value in state.likelihood.items()}
    losses = likelihood.log_loss(outputs, few, learned)
    if not isinstance(losses, Tensor) or tuple(losses.shape) != (len(few),):
        got = tuple(losses.shape) if isinstance(losses, Tensor) else repr(losses)
        raise ValueError(
            f"{type(likelihood).__name__} must give one loss per sample, shape ({len(few)},), "
            f"got {got}: do not average over the batch"
        )
    if gradients.targets == "model":
        key = torch.zeros(2, dtype=torch.int32, device=x.device)
        likelihood.sample(outputs, key, learned)  # a LogLoss without sample= fails here
    if kind not in gradients.checked:
        check_statistics(gradients, state.params, state.likelihood, x, y)
        gradients.checked.add(kind)
    gradients.prepare(state.params, x)


def _check_axis_of_rows(outputs: Any, one: Any) -> None:
    """Refuses outputs that lose their first axis where there is one row, or few: squeeze()."""
    if isinstance(one, Tensor) and (one.ndim == 0 or one.ndim < getattr(outputs, "ndim", 0)):
        raise ValueError(
            f"the network's outputs for one row are of shape {tuple(one.shape)}, without an axis "
            "of rows: choose the axis that is removed, squeeze(-1) in place of squeeze()"
        )


def batch_check(gradients: Gradients, params: Params) -> Callable[[Tensor, Tensor], None]:
    """A function that refuses a later batch whose targets do not fit. The outputs are needed for
    their shape alone, so the network is called once for every shape of x."""
    known: dict[tuple[torch.Size, torch.dtype], Any] = {}

    def check(x: Tensor, y: Tensor) -> None:
        kind = (x[:FEW].shape, x.dtype)
        if kind not in known:
            known[kind] = outputs_of_few(gradients.network, params, x)
        gradients.likelihood.check(known[kind], y)

    return check


def outputs_of_few(network: Network, params: Params, x: Tensor) -> Any:
    """The first chain's outputs for the first few samples."""
    first = {name: p[0] for name, p in params.items()}
    with torch.no_grad(), shown_to_model(x):
        return network.call(first, x[:FEW].clone())  # a network may work in place


def _same(a: Any, b: Any) -> bool:
    """Up to what sums in another order change. (``torch.testing`` takes a second to import.)"""
    if not isinstance(a, Tensor) or not isinstance(b, Tensor):
        return bool(a == b)
    if a.shape != b.shape or a.dtype != b.dtype or not (a.is_floating_point() or a.is_complex()):
        return torch.equal(a, b)
    rtol = 10 * torch.finfo(a.dtype).eps
    return torch.allclose(a, b, rtol=rtol, atol=1e-5, equal_nan=True)


def check_network(network: Network, params: Params, x: Tensor, outputs: Any) -> None:
    """Refuses a network whose outputs do not follow from its weights, or not from them alone."""
    check_attached(network, {k: p[0] for k, p in params.items()}, x[:FEW])
    _check_deterministic(network, params, x, outputs)


def _check_deterministic(network: Network, params: Params, x: Tensor, outputs: Any) -> None:
    """The likelihood of a parameter must be one number: no dropout, no noise in the network.

    vmap refuses torch's random operations; calling again finds the others. What else vmap and the
    gradient cannot take is refused here too, on inputs that differ between chains."""
    one = {name: p[:1] for name, p in params.items()}

    def gradient(p: Params, x: Tensor) -> Any:
        outputs, pullback = vjp(lambda q: network.call(q, x), p)[:2]
        return outputs, pullback(outputs)

    try:
        again = outputs_of_few(network, params, x)
        pairs = zip(pytree.tree_leaves(again), pytree.tree_leaves(outputs), strict=False)
        if not all(_same(a, b) for a, b in pairs):
            raise AssertionError("two calls differ")
        vmap(gradient)(one, x[None, :FEW].clone())
    except (AssertionError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "randomness" not in str(error):
            raise ValueError(
                "the model cannot be vectorised over chains and samples: "
                f"{why_untransformable(error)}. Choose between values with torch.where "
                "instead of `if` or a boolean index, keep .item() and numpy out of the forward "
                "pass, and give a custom autograd.Function setup_context and a vmap rule. A "
                "network that cannot be changed can be sampled in your own training loop: "
                "optim.NaturalLangevin(..., preconditioner=preconditioners.RMSProp())"
            ) from error
        raise ValueError(
            "the model's forward pass is random: two calls with the same inputs differ, or it "
            "draws random numbers, but the likelihood needs a deterministic network. Call "
            "model.eval() first, or remove F.dropout(training=True) or the noise from its forward"
        ) from error


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
