"""Checks of the sampler's arguments; an error names the value and the remedy."""

from __future__ import annotations

import functools
import math
import numbers
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from natural_langevin import schedules
from natural_langevin._internal import whole_numbers
from natural_langevin.dynamics import Integrator, LangevinDynamics, Overdamped
from natural_langevin.likelihoods import Likelihood
from natural_langevin.posterior.plan import STARTS
from natural_langevin.preconditioners import Preconditioner
from natural_langevin.priors import Prior

whole_number = whole_numbers.whole_number

#: Chains of one run, whose weights are all in memory at once.
MOST_CHAINS = 1_000_000

Method = TypeVar("Method", bound=Callable[..., Any])


def data_in_one(method: Method) -> Method:
    """A method whose first argument is all of the data: (x, y) given as two is the usual slip."""

    @functools.wraps(method)
    def checked(self: Any, *args: Any, **kwargs: Any) -> Any:
        if len(args) > 1 and hasattr(args[1], "__len__") and not isinstance(args[1], str):
            name = method.__name__
            raise TypeError(
                f"data are one argument, a pair: {name}((x, y), ...) in place of {name}(x, y, ...)"
            )
        return method(self, *args, **kwargs)

    return checked  # type: ignore[return-value]


def check_arguments(
    model: Any,
    likelihood: Any,
    prior: Any,
    preconditioner: Any,
    init: Any,
    dynamics: Any = Overdamped(),  # noqa: B008 - immutable
) -> None:
    """The kinds of the sampler's parts; their values are checked where they are made."""
    if not isinstance(model, nn.Module):
        parameters = isinstance(model, Iterator)
        remedy = "the model itself, not model.parameters()" if parameters else "an instance of one"
        raise TypeError(
            f"model must be a torch.nn.Module, got {type(model).__name__}: give {remedy}"
        )
    _check_kind(
        "likelihood", likelihood, Likelihood, "one of natural_langevin.likelihoods",
        "give likelihoods.Categorical(), for example" if isinstance(likelihood, str)
        else "wrap a per-sample log-loss as likelihoods.LogLoss(fn)",
    )  # fmt: skip
    _check_kind(
        "prior", prior, (Prior, Mapping), "one of natural_langevin.priors, or a dict of them",
        "give priors.Gaussian(variance=0.1), for example",
    )  # fmt: skip
    _check_kind(
        "preconditioner", preconditioner, Preconditioner, "one of natural_langevin.preconditioners",
        "give preconditioners.DiagonalFisher(), for example",
    )  # fmt: skip
    _check_kind(
        "dynamics", dynamics, Integrator, "one of natural_langevin.dynamics",
        "give dynamics.Overdamped(), for example",
    )  # fmt: skip
    if init not in STARTS:
        raise ValueError(
            f'init must be "auto", "model", "fan_in", "prior", a state dict, or a list of one per '
            f"chain, got {init!r}"
        )


def _check_kind(name: str, value: Any, kind: Any, allowed: str, remedy: str) -> None:
    if isinstance(value, kind):
        return
    if isinstance(value, type):
        remedy = f"make an instance of it, {value.__name__}(...)"
    raise TypeError(f"{name} must be {allowed}, got {value!r}: {remedy}")


def check_counts(chains: Any, num_data: Any, seed: Any) -> tuple[int, float | None, int]:
    """Checks the sampler's whole numbers, and returns them as Python's own ints."""
    chains, seed = whole_number("chains", chains), whole_number("seed", seed)
    if not 1 <= chains <= MOST_CHAINS:
        raise ValueError(
            f"chains must be a positive integer of at most {MOST_CHAINS:,}, got {chains!r}"
        )
    if not 0 <= seed < 1 << 63:
        raise ValueError(f"seed must be an integer from 0 to 2^63 - 1, got {seed!r}")
    if num_data is None:
        return chains, None, seed
    if isinstance(num_data, bool) or not isinstance(num_data, numbers.Real):
        raise TypeError(f"num_data must be a number, got {num_data!r}: give len(dataset)")
    if not 0 < float(num_data) < math.inf:
        raise ValueError(f"num_data must be positive and finite, got {num_data!r}")
    count = int(num_data) if isinstance(num_data, numbers.Integral) else float(num_data)
    return chains, count, seed


def check_training(
    microbatch: Any,
    autocast: Any,
    clip: Any,
    preconditioner: Preconditioner,
    control_variates: Any,
    dynamics: Integrator,
    likelihood: Likelihood,
) -> None:
    """The settings of how the gradient is computed."""
    if microbatch is not None:
        if whole_number("microbatch", microbatch) < 1:
            raise ValueError(f"microbatch must be a positive integer or None, got {microbatch!r}")
        if "samples" in preconditioner.requests:
            raise ValueError(
                f"microbatch={microbatch!r} does not go with {type(preconditioner).__name__}, "
                "which needs the gradients of all samples at once: leave it out"
            )
    if autocast not in (None, torch.bfloat16, torch.float16):
        raise ValueError(
            f"autocast must be torch.bfloat16, torch.float16 or None, got {autocast!r}"
        )
    if clip is not None and (
        isinstance(clip, bool)
        or not isinstance(clip, numbers.Real)
        or not 0 < float(clip) < math.inf
    ):
        raise ValueError(f"clip must be a positive number or None, got {clip!r}")
    _check_anchors(control_variates, clip, dynamics, likelihood)


def _check_anchors(every: Any, clip: Any, dynamics: Integrator, likelihood: Likelihood) -> None:
    """``control_variates``, and what does not go with them."""
    if every is None:
        return
    if whole_number("control_variates", every) < 1:
        raise ValueError(
            f"control_variates must be a positive number of steps between two anchors, got {every}"
            ": about num_data / batch_size is good, None is without"
        )
    name = f"control_variates={every}"
    if clip is not None:
        raise ValueError(
            f"{name} needs unclipped gradients, but clip={clip!r} is given: use only one of them"
        )
    if getattr(dynamics, "correct_heat", False):
        raise ValueError(
            f"{name} removes most minibatch noise, and correct_heat=True would remove it a second "
            "time: use only one of them"
        )
    likelihood.refuse_learning(name)


def refuse_anchors(what: str, dynamics: LangevinDynamics) -> None:
    """Whoever does not see all data cannot make an anchor."""
    if dynamics.control_variates:
        raise ValueError(
            f"control_variates={dynamics.control_variates} needs all data in memory, which {what} "
            "does not offer: give the tensors (x, y) to sample(), or leave it out"
        )


def device_of(name: str | torch.device) -> torch.device:
    """The device of this name; there may be none here (``to_device``)."""
    try:
        return torch.device(name)
    except (RuntimeError, TypeError):
        raise ValueError(
            f'device must be "cpu", "cuda", "cuda:1", ... or None, where the model is, got {name!r}'
            + (': a GPU of NVIDIA or AMD is "cuda"' if str(name).lower()[:3] == "gpu" else "")
        ) from None


def to_device(model: nn.Module, device: torch.device) -> None:
    """Moves the model; a device that this machine or this torch does not have is refused."""
    try:
        model.to(device)
    except torch.OutOfMemoryError:
        raise
    except (AssertionError, NotImplementedError, RuntimeError) as error:
        reason = str(error).partition("\n")[0].rstrip(".")
        raise ValueError(
            f'device "{device}" is not available here ({reason}): use device="cpu"'
        ) from error


def check_parameters(model: nn.Module) -> list[nn.Parameter]:
    """The trainable parameters, which must share a dtype and be finite."""
    trainable = [p for p in model.parameters() if p.requires_grad]
    if not trainable:
        raise ValueError(
            "the model has no trainable parameters: set requires_grad_(True) on those to sample"
        )
    dtypes = {p.dtype for p in trainable}
    if len(dtypes) > 1 or not next(iter(dtypes)).is_floating_point:
        raise TypeError(f"trainable parameters must share one real floating dtype, got {dtypes}")
    dtype = trainable[0].dtype
    if dtype.itemsize < 4:
        raise TypeError(
            f"the parameters are {dtype}, whose rounding is larger than a step: they would never "
            "move, or only by rounding. Use model.float(), and autocast=torch.bfloat16 for its "
            "speed"
        )
    for name, p in model.named_parameters():
        if not torch.isfinite(p).all():
            raise ValueError(f"parameter {name!r} holds NaN or infinite values: re-initialise it")
    return trainable


def check_temperature(value: Any, chains: int) -> Tensor:
    """T of every chain: float64, (chain,)."""
    if callable(value):
        raise TypeError(
            f"temperature must be a number or one value per chain, got {value!r}: it cannot change "
            "along the run. Start one run per temperature, or give every chain its own"
        )
    if isinstance(value, list | tuple | np.ndarray) and np.ndim(value):
        raise TypeError(
            f"temperature must be a number or a tensor of one value per chain, got {value!r:.80}: "
            f"give torch.tensor({list(value)!r:.80}), and chains={len(value)}"
        )
    return schedules.tabulate(value, 0, 1, name="temperature", chains=chains)[0]


def check_power(value: Any, chains: int) -> Tensor | None:
    """beta of every chain, float64, (chain,); None where all are 1."""
    if callable(value):
        raise TypeError(
            f"likelihood_power must be a number or one value per chain, got {value!r}: it cannot "
            "change along the run. Give every chain its own"
        )
    power = schedules.tabulate(value, 0, 1, name="likelihood_power", chains=chains)[0]
    if not bool((power > 0).all()):
        raise ValueError(
            f"likelihood_power must be above 0, got {value!r}: at 0 the target is the prior, from "
            'which init="prior" draws exactly'
        )
    return None if bool((power == 1).all()) else power
