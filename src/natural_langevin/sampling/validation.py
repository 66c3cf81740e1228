"""Checks: wrong arguments and data that do not fit fail before the first step, with a remedy."""

from __future__ import annotations

import logging
import math
import numbers
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.func import vjp, vmap
from torch.utils import _pytree as pytree

from natural_langevin import schedules
from natural_langevin._internal import capacity
from natural_langevin._internal.proven import is_proven
from natural_langevin._internal.tensorfile import Spec, size_in_bytes
from natural_langevin.data.streams import Loader, Stream
from natural_langevin.dynamics import Integrator, LangevinDynamics, Overdamped, RatesTable, State
from natural_langevin.likelihoods import Likelihood
from natural_langevin.preconditioners import (
    Euclidean,
    Preconditioner,
    RMSProp,
    resolve_damping,
)
from natural_langevin.priors import Prior
from natural_langevin.sampling import trials
from natural_langevin.sampling.pitfalls import check_attached
from natural_langevin.statistics import Gradients, Network, Params
from natural_langevin.statistics.selfcheck import check_statistics
from natural_langevin.statistics.vectorised import why_untransformable

log = logging.getLogger("natural_langevin")

StepSize = float | Tensor | schedules.Schedule

#: Samples on which the network is tried out.
FEW = 4


def whole_number(name: str, value: Any) -> int:
    """``value`` as an int. Numpy's integers are fine; bools, floats and strings are mistakes."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise TypeError(f"{name} must be an integer, got {value!r}: convert it with int(...)")
    return int(value)


def check_arguments(
    model: Any,
    likelihood: Any,
    prior: Any,
    preconditioner: Any,
    init: str,
    dynamics: Any = Overdamped(),  # noqa: B008 - immutable
) -> None:
    """The kinds of the sampler's parts; their values are checked where they are made."""
    if not isinstance(model, nn.Module):
        raise TypeError(
            f"model must be a torch.nn.Module, got {type(model).__name__}: give an instance of one"
        )
    _check_kind(
        "likelihood", likelihood, Likelihood, "one of natural_langevin.likelihoods",
        "wrap a per-sample log-loss as likelihoods.LogLoss(fn)",
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
    if init not in ("auto", "model", "fan_in", "prior"):
        raise ValueError(f'init must be "auto", "model", "fan_in" or "prior", got {init!r}')


def _check_kind(name: str, value: Any, kind: Any, allowed: str, remedy: str) -> None:
    if isinstance(value, kind):
        return
    if isinstance(value, type):
        remedy = f"make an instance of it, {value.__name__}(...)"
    raise TypeError(f"{name} must be {allowed}, got {value!r}: {remedy}")


def check_counts(chains: Any, num_data: Any, seed: Any) -> tuple[int, float | None, int]:
    """The numbers, as Python's own."""
    chains, seed = whole_number("chains", chains), whole_number("seed", seed)
    if chains < 1:
        raise ValueError(f"chains must be a positive integer, got {chains!r}")
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
) -> dict[str, Any]:
    """The settings of the gradient that are not left at their defaults, in words."""
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
    settings = {
        "microbatch": microbatch, "autocast": autocast and str(autocast), "clip": clip,
        "control_variates": control_variates,
    }  # fmt: skip
    return {name: value for name, value in settings.items() if value is not None}


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
            f"{name} needs gradients that add up, and clip={clip!r} cuts some: leave one out"
        )
    if getattr(dynamics, "correct_heat", False):
        raise ValueError(
            f"{name} leaves little of the minibatches' noise, and correct_heat=True would take all "
            "of it away once more: leave one out"
        )
    if likelihood.init(1, dtype=torch.float32, device=torch.device("cpu")):
        raise ValueError(
            f"{name} needs a likelihood that stays the same, and {likelihood!r} learns from every "
            "batch: give its value, such as likelihoods.Gaussian(sigma=0.3)"
        )


def refuse_anchors(what: str, dynamics: LangevinDynamics) -> None:
    """Whoever does not see all data cannot make an anchor."""
    if dynamics.control_variates:
        raise ValueError(
            f"control_variates={dynamics.control_variates} needs all data in memory, which {what} "
            "does not show: give the tensors (x, y) to sample(), or leave it out"
        )


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
            "move, or move by rounding alone. Use model.float(), and autocast=torch.bfloat16 for "
            "its speed"
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
    return schedules.tabulate(value, 0, 1, name="temperature", chains=chains)[0]


def check_kept(burn_in: Any, thin: Any) -> tuple[int, int]:
    """Which iterates are kept: burn_in + thin, burn_in + 2 thin, ..."""
    burn_in, thin = whole_number("burn_in", burn_in), whole_number("thin", thin)
    if burn_in < 0 or thin < 1:
        raise ValueError(f"burn_in must be >= 0 and thin >= 1, got {burn_in} and {thin}")
    return burn_in, thin


def check_run(steps: int, burn_in: int, thin: int) -> int:
    """How many iterates will be kept."""
    check_kept(burn_in, thin)
    if steps <= burn_in:
        raise ValueError(
            f"steps must be larger than burn_in, got steps={steps} and burn_in={burn_in}: "
            "no sample would be kept"
        )
    kept = (steps - burn_in) // thin
    if kept == 0:
        raise ValueError(
            f"thin={thin} is larger than the {steps - burn_in} steps after burn_in: "
            "no sample would be kept"
        )
    return kept


def largest_step(preconditioner: Preconditioner, prior: dict[str, Prior], num_data: float) -> float:
    """eta / k, where k is the rate at which the prior alone pulls a weight that no datum sees.

    There C has its largest value c, and a step is theta <- (1 - k) theta + noise with

        k = eta c precision / N,      c = 1 / damping, or 1 with ``Euclidean``,

    so k = eta with ``damping="prior"``. The variance comes out as the prior's / (1 - k/2); beyond 1
    steps overshoot, and beyond 2 ever further: a chain will diverge whatever the data say.
    Infinite where the prior does not pull."""
    damping = resolve_damping(preconditioner, prior, num_data)
    limits = []
    for name, one in prior.items():
        # As ``damping_from`` has it: epsilon is the curvature, or for RMSProp its square.
        inverse = torch.as_tensor(damping[name], dtype=torch.float64)
        if isinstance(preconditioner, RMSProp):
            inverse = inverse.sqrt()
        elif isinstance(preconditioner, Euclidean):
            inverse = torch.ones((), dtype=torch.float64)
        precision = torch.as_tensor(one.precision, dtype=torch.float64)
        limits.append(float((inverse * num_data / precision.to(inverse.device)).min()))
    return min([limit for limit in limits if limit > 0], default=math.inf)


#: From here on the prior's own stiffness is worth a word: variances 5 % too large.
STIFF = 0.1


def warn_if_stiff(
    preconditioner: Preconditioner, prior: dict[str, Prior], step_size: float, num_data: float
) -> None:
    """Says before the run what ``largest_step`` knows of it."""
    k = step_size / largest_step(preconditioner, prior, num_data)
    if k < STIFF:
        return
    effect = "grows without bound, and the chain diverges"
    if k < 2:
        effect = f"comes out {1 / (1 - k / 2):.3g} times too large"
    remedy = f"a step size below {step_size * STIFF / k:.2g}"
    if preconditioner.damping not in ("prior", 0.0):
        remedy += ', or damping="prior"'
    log.log(
        trials.level(),
        "step_size precision / (damping N) = %.2g: the variance of a weight that only the prior "
        "sees (dead inputs, dead units) %s. Use %s", k, effect, remedy,
    )  # fmt: skip


#: A second half that goes less than this part of the way of the first is hardly worth its time.
SATURATED = 0.1


def warn_if_saturated(step_size: Tensor) -> None:
    """``step_size`` (step, chain) of the steps whose iterates are kept.

    Sum eta is the time that a chain diffuses for. Where it converges, as for ``halving``, more
    steps do not explore further: late draws repeat each other, and longer is worse than shorter."""
    half = len(step_size) // 2
    total = step_size.double().sum(0)
    late = step_size[half:].double().sum(0)
    if half < 100 or not bool((total > 0).all()):
        return
    share = float((late / total).min())
    if share < SATURATED:
        log.warning(
            "the step size falls so fast that the second half of the run moves %.2g %% of the way: "
            "its draws add next to nothing. Use fewer steps, or a schedule whose sum does not "
            "converge, such as schedules.polynomial(initial, offset)", 100 * share,
        )  # fmt: skip


def check_data(gradients: Gradients, state: State, x: Tensor, y: Tensor, targets: Tensor) -> None:
    """A batch (x, y), and all ``targets`` that are known, must fit the network and the likelihood.

    Afterwards ``gradients`` is prepared for batches of this shape."""
    likelihood = gradients.likelihood
    outputs = outputs_of_few(gradients.network, state.params, x)
    if not is_proven():
        check_attached(gradients.network, {k: p[0] for k, p in state.params.items()}, x[:FEW])
        _check_deterministic(gradients.network, state.params, x, outputs)
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
    if not is_proven():
        check_statistics(gradients, state.params, state.likelihood, x, y)
    gradients.prepare(state.params, x)


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
    dtype = next(iter(first.values())).dtype
    if x.is_floating_point() and x.dtype != dtype:
        raise TypeError(f"x is {x.dtype} but the model is {dtype}: convert one of them")
    try:
        with torch.no_grad():
            return network.call(first, x[:FEW].clone())  # a network may work in place
    except RuntimeError as error:
        raise ValueError(f"the model cannot take x of shape {tuple(x.shape)}: {error}") from error


def _same(a: Any, b: Any) -> bool:
    """Up to what sums in another order change. (``torch.testing`` takes a second to import.)"""
    if not isinstance(a, Tensor) or not isinstance(b, Tensor):
        return bool(a == b)
    if a.shape != b.shape or a.dtype != b.dtype or not (a.is_floating_point() or a.is_complex()):
        return torch.equal(a, b)
    rtol = 10 * torch.finfo(a.dtype).eps
    return torch.allclose(a, b, rtol=rtol, atol=1e-5, equal_nan=True)


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
                "network that cannot be changed can be sampled in a loop of one's own: "
                "optim.NaturalLangevin(..., preconditioner=preconditioners.RMSProp())"
            ) from error
        raise ValueError(
            "the model's forward pass is random: two calls with the same inputs differ, or it "
            "draws random numbers, but the likelihood needs a deterministic network. Call "
            "model.eval() first, or remove F.dropout(training=True) or the noise from its forward"
        ) from error


def known_step_size(value: StepSize | Literal["auto"]) -> StepSize:
    """A step size that must be known beforehand."""
    if isinstance(value, str) and value == "auto":
        raise ValueError(
            'step_size="auto" is chosen by sample(), which sees all the data: call it first, or '
            "give step_size= here, or to Langevin"
        )
    return value


def check_every(every: Any) -> int | None:
    """Steps between two checkpoints."""
    if every is None:
        return None
    every = whole_number("every", every)
    if every < 1:
        raise ValueError(f"every must be a positive number of steps, got {every}")
    return every


def check_given(**counts: Any) -> None:
    """What ``sample`` was given of ``steps``, ``burn_in``, ``thin`` and ``batch_size`` (None: left
    open), before anything else is settled."""
    given = {k: whole_number(k, value) for k, value in counts.items() if value is not None}
    if given.get("batch_size", 1) < 1:
        return  # the data are named in that error
    burn_in, thin = given.get("burn_in", 0), given.get("thin", 1)
    check_run(given.get("steps", max(burn_in, 0) + max(thin, 1)), burn_in, thin)


def check_thinning(
    steps: int, burn_in: int, thin: int, keep: Any, explores: schedules.Stages | None = None
) -> tuple[int, int]:
    """The thinning to use, and how many iterates it keeps: at most ``keep``, and none of the steps
    that explore.

    A run that dropped every second sample whenever it held more than ``keep``, and went on with
    twice the thinning, would end with burn_in + t, burn_in + 2t, ... for t = thin, 2 thin, 4 thin,
    ... Since the steps are known, that last t is used from the start."""

    def count(thin: int) -> int:
        ends = range(burn_in + thin, steps + 1, thin)
        return len(ends) if explores is None else sum(not explores(k - 1) for k in ends)

    check_run(steps, burn_in, thin)
    keep = None if keep is None else whole_number("keep", keep)
    if keep is not None and keep < 1:
        raise ValueError(f"keep must be a positive integer, got {keep}")
    while keep is not None and count(thin) > keep:
        thin *= 2
    if not count(thin):
        raise ValueError(
            f"every iterate that thin={thin} would keep of {steps} steps after burn_in={burn_in} "
            "is of an exploration stage: use a smaller thin, or steps that are whole cycles"
        )
    return thin, count(thin)


def check_stages(dynamics: Integrator, rates: RatesTable) -> None:
    """A Metropolis test needs one temperature."""
    if rates.explores is not None and dynamics.tunes:
        raise ValueError(
            f"{dynamics!r} accepts and refuses at one temperature, and the step size's schedule "
            "has exploration stages at temperature 0: use dynamics.Overdamped() or Underdamped(), "
            "or exploration=0"
        )


def check_sample_dtype(value: Any, model_dtype: torch.dtype) -> torch.dtype:
    """How samples are stored: None is the model's own dtype."""
    if value is None:
        return model_dtype
    allowed = (torch.bfloat16, torch.float16, torch.float32, torch.float64)
    if value not in allowed or value.itemsize > model_dtype.itemsize:
        raise ValueError(
            "sample_dtype must be a floating dtype no wider than the model's "
            f"{model_dtype}, got {value!r}: give torch.bfloat16, or None for the model's own"
        )
    return value


def check_memory(specs: Mapping[str, Spec], place: str | Path, device: torch.device) -> None:
    """Refuses to keep more samples than there is room for, before the first step."""
    needed = sum(size_in_bytes(spec) for spec in specs.values())
    draws = next(iter(specs.values()))[1][1]
    if isinstance(place, Path):  # a run's own draws will be replaced, or are these very samples
        own = sum(p.stat().st_size for p in place.glob("draws-*.safetensors"))
        there = capacity.on_disk(place) + own
        name, remedy = f"the disk of {place}", "free some space"
    elif place == "device" and device.type == "cuda":
        there = capacity.in_memory(device)
        name, remedy = "the device", 'store them with store="cpu" or in a folder'
    else:
        there = capacity.in_memory(torch.device("cpu"))
        name, remedy = "the memory", "store them in a folder with store="
    if needed > there:
        raise ValueError(
            f"keeping {draws} samples of every chain takes {needed / 2**30:.3g} GiB and {name} has "
            f"{there / 2**30:.3g}: raise thin (or burn_in) or give keep= to keep fewer, use "
            f"sample_dtype=torch.bfloat16, or {remedy}"
        )


def warn_if_epochs(dynamics: Integrator, stream: Stream) -> None:
    """``correct_heat`` takes away the noise of independent minibatches; those of one epoch bring
    less of it (see ``dynamics.heat``)."""
    if not getattr(dynamics, "correct_heat", False) or isinstance(stream, Loader):
        return
    if stream.batch_size < stream.num_data:
        log.warning(
            "correct_heat: minibatches that are parts of one shuffled epoch bring less noise than "
            "independent ones, for which the correction is: the chain comes out too cold (0.69 of "
            "the variance in a linear regression at step size B / N). Give independent minibatches "
            "(data.SharedBatches of a DataLoader with RandomSampler(replacement=True)), or "
            "correct_heat=False"
        )
