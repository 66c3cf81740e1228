"""``NaturalLangevin``: Algorithm 1 as a ``torch.optim.Optimizer``, for a loop of one's own.

The equation, the metrics, the priors and the noise are those of ``langevin.Dynamics``: with the
same minibatches the iterates are those of ``Langevin(chains=1)``. What is new is where gradients
and statistics come from: the user's own forward and backward passes (see ``fisher``).
"""

from __future__ import annotations

import copy
import glob
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from natural_langevin import likelihoods, preconditioners, priors, schedules
from natural_langevin._internal.fingerprints import stable_repr
from natural_langevin.dynamics.frame import LangevinDynamics
from natural_langevin.dynamics.rates import Rates
from natural_langevin.optim import block_update, shards
from natural_langevin.optim.agreement import Agreement, Local
from natural_langevin.optim.capture import remove_hooks
from natural_langevin.optim.collector import Collector
from natural_langevin.optim.fisher import Fisher, Reduction
from natural_langevin.optim.groups import Names, as_groups, check_number, refuse_ignored
from natural_langevin.optim.labels import Labels
from natural_langevin.optim.loss_check import LossCheck
from natural_langevin.optim.metric_state import MetricLayout
from natural_langevin.optim.reading import local_gradient, not_finite
from natural_langevin.optim.scaling import Scale, Scaling
from natural_langevin.sampling.loop import DivergenceError
from natural_langevin.sampling.validation import check_arguments, check_counts, check_parameters
from natural_langevin.types import Params


@torch.no_grad()
def set_values(parameters: Mapping[str, nn.Parameter], values: Params) -> None:
    """Copies the values of the same names into the parameters."""
    for name, parameter in parameters.items():
        parameter.copy_(values[name])


def _rebuilt(
    kind: type[NaturalLangevin],
    model: nn.Module,
    likelihood: likelihoods.Likelihood,
    settings: dict[str, Any],
    groups: list[dict[str, Any]],
    state: dict[str, Any],
) -> NaturalLangevin:
    """The optimizer of which ``__reduce__`` gave these."""
    remove_hooks(model)  # of the copied optimizer
    named = dict(model.named_parameters())
    chosen = [group | {"params": [named[k] for k in group["params"]]} for group in groups]
    optimizer = kind(model, likelihood, params=chosen, **settings)
    optimizer.load_state_dict(state)
    return optimizer


class NaturalLangevin(torch.optim.Optimizer):
    """Samples a model's weights in a training loop: two lines differ from SGD.

    >>> from torch.nn import functional as F
    >>> model = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 3))
    >>> data = [(torch.rand(16, 2), torch.arange(16) % 3) for _ in range(4)]
    >>> optimizer = NaturalLangevin(model, likelihoods.Categorical(), num_data=64, lr=1e-3)
    >>> collector = optimizer.collector(burn_in=2, thin=2)
    >>> for x, y in data * 3:
    ...     optimizer.zero_grad()
    ...     F.cross_entropy(model(x), y).backward()
    ...     optimizer.step()
    >>> collector.posterior().predict(data[0][0]).mean.shape
    torch.Size([16, 3])

    One ``step()`` is, with g the mean loss gradient over the samples since the last step,

        v     = g - (1/N) d ln alpha(theta)
        theta = theta - lr C v + sqrt(2 lr T / N) C^{1/2} xi,      xi ~ N(0, Id)

    so ``lr`` is on SGD's scale and may be set by any ``torch.optim.lr_scheduler``.

    - Gradient accumulation: call ``backward()`` on micro-batches of any sizes, whose losses add up
      to the mean (or sum, see ``reduction``) over all samples of the step.
    - Mixed precision: autocast, and GradScaler as with any optimizer.
    - ``state_dict`` holds the running mean, the metric and the step count: a loop goes on with the
      same bits (give the same ``seed`` and ``num_data``). A scheduler and a collector have theirs.
    - The network must be deterministic: ``without_dropout(model)``, BatchNorm in eval mode. Passes
      under ``no_grad``, or without ``backward()``, change nothing.
    - Under ``torchrun``: DistributedDataParallel, or ``fully_shard`` before the optimizer is made;
      then parameters, metric and mean are DTensors, and ``torch.distributed.checkpoint`` saves
      them (call ``init_state()`` before loading). All ranks are one run, with the same settings,
      and a rank that differs is named on all of them. Ranks with chains of their own are not
      wrapped: every rank its own ``model`` and ``chain=rank``, or ``Langevin`` under ``torchrun``.
    """

    #: GradScaler hands over its scale and whether it found infinities: see ``scaling``.
    _step_supports_amp_scaling = True

    def __init__(
        self,
        model: nn.Module,
        likelihood: likelihoods.Likelihood,
        *,
        num_data: float,
        lr: float | schedules.Schedule = 1e-3,
        prior: priors.PriorLike = priors.Gaussian(variance=0.1),
        preconditioner: preconditioners.Preconditioner | None = None,
        temperature: float = 1.0,
        params: Any = None,
        reduction: Reduction = "mean",
        mean_rate: float | schedules.Schedule = schedules.inverse_sqrt(),
        seed: int = 0,
        chain: int = 0,
        scaler: Any = None,
        check_loss: bool = True,
    ) -> None:
        """``model`` is the module that the loop calls; hooks on its layers read off the statistics.
        It may be wrapped in DistributedDataParallel, or sharded by FSDP2's ``fully_shard``.

        ``num_data``: N, the size of the training set. ``lr``: eta, a number or a schedule of
        ``natural_langevin.schedules``. ``params``: what to sample, by default every trainable
        parameter; tensors, patterns of names, or groups of them with their own ``lr``,
        ``temperature`` and ``prior``, such as ``[{"params": "*.bias", "lr": 1e-4}, {"params":
        "*"}]`` (the first match wins). ``reduction``: whether the losses that ``backward()`` is
        called on between two steps add up to the "mean" or to the "sum" over all their samples.
        ``mean_rate``: mu_t of the running mean. ``chain``: which of the chains of
        ``Langevin(seed=seed)`` draws the noise; loops with the same seed and different chains are
        independent. ``scaler``: the GradScaler, needed only with ``scaler.unscale_(optimizer)``.
        ``check_loss``: at the first step the loss's gradient is compared with the likelihood's own
        on that batch, and a factor between them is refused (see ``loss_check``).
        """
        if preconditioner is None:
            preconditioner = preconditioners.QuasiDiagonalFisher()
        replicas = None
        if isinstance(model, nn.parallel.DistributedDataParallel):
            model, replicas = model.module, model.process_group
        check_arguments(model, likelihood, prior, preconditioner, "model")
        if reduction not in ("mean", "sum"):
            raise ValueError(f'reduction must be "mean" or "sum", got {reduction!r}')
        _, count, self.seed = check_counts(1, num_data, seed)
        if count is None:
            raise ValueError(
                "num_data=None: give the number of training data, num_data=len(dataset). It sets "
                "the weight of the prior and the size of the noise"
            )
        self.num_data, self.chain, self.reduction = count, check_counts(1, 1, chain)[2], reduction
        self.model, self.likelihood, self.preconditioner = model, likelihood, preconditioner
        self.mean_rate, self._lr = mean_rate, lr
        check_parameters(model)
        self._names = Names(model)
        watching = Fisher
        if shards.any_sharded(self._names.params.values()):
            from natural_langevin.optim.sharded import ShardedFisher

            watching = ShardedFisher
        self._fisher = watching(model, preconditioner, reduction=reduction)
        self._fisher.group, self._fisher.basis = replicas, partial(block_update.basis, self)
        self._agreement = Agreement(self._defining, self._changing)
        self._labels = Labels(self, self._fisher)
        self._loss_check = LossCheck(likelihood)
        self._loss_check.done = not check_loss
        self._fisher.capture.hand_out = self._loss_check.hand_out
        self._scaling = Scaling(scaler)
        self._prior_like, self._group_priors = prior, dict[str, priors.Prior]()
        self._prior: dict[str, priors.Prior] = {}
        self._layout: MetricLayout  # of the metric; made with the first group
        self._dynamics_of: dict[Any, LangevinDynamics] = {}
        defaults = {"lr": lr(0) if callable(lr) else lr, "temperature": temperature}
        super().__init__(as_groups(params, self._names), defaults)
        block_update.rates_at(self, 0, self.param_groups[0]["lr"])  # wrong rates fail here

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies and pickles have settings, state and a model of their own. What was gathered since
        the last step, hooks and schedulers stay behind, as in torch."""
        settings = {
            "num_data": self.num_data, "lr": self._lr, "prior": self._prior_like,
            "preconditioner": self.preconditioner, "temperature": self.defaults["temperature"],
            "reduction": self.reduction, "mean_rate": self.mean_rate, "seed": self.seed,
            "chain": self.chain, "scaler": self._scaling.scaler,
            "check_loss": not self._loss_check.done,
        }  # fmt: skip
        groups = []
        for group in self.param_groups:
            names = [self._names.of(p) for p in group["params"]]
            own = {k: self._group_priors[k] for k in names if k in self._group_priors}
            prior = {"prior": {glob.escape(k): p for k, p in own.items()}} if own else {}
            groups.append({"params": names, "temperature": group["temperature"]} | prior)
        return _rebuilt, (
            type(self),
            self.model,
            self.likelihood,
            settings,
            groups,
            self.state_dict(),
        )

    # Parameter groups -----------------------------------------------------------------------------

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """A group may bring ``lr``, ``temperature`` and ``prior``; ``params`` may be patterns."""
        group = dict(param_group)
        group["params"] = self._names.chosen(group["params"])
        refuse_ignored(group)
        prior = group.pop("prior", None)
        super().add_param_group(group)
        added = self.param_groups[-1]
        added["step"] = self.param_groups[0].get("step", 0)
        names = [self._names.of(p) for p in group["params"]]
        check_number("temperature", added["temperature"])
        check_number("lr", added["lr"])
        if prior is not None:
            own = {n: self._names.params[n] for n in names}
            self._group_priors |= priors.resolve(prior, own, 1)
        sampled = self.sampled()
        rest = {n: p for n, p in sampled.items() if n not in self._group_priors}
        usual = priors.resolve(self._prior_like, rest, 1) if rest else {}
        self._prior = self._group_priors | usual
        units = self._fisher.sample_units(list(sampled))
        if shards.any_sharded(sampled.values()):
            shards.check_shards(sampled, units, self._prior)
        shapes = {n: p.shape for n, p in sampled.items()}
        self._layout = MetricLayout(self.preconditioner, shapes, units)
        self._dynamics_of = {}

    @property
    def steps(self) -> int:
        """Updates done so far."""
        return int(self.param_groups[0]["step"])

    def sampled(self) -> dict[str, nn.Parameter]:
        """The parameters that are sampled, by name, in the model's order."""
        ids = {id(p) for group in self.param_groups for p in group["params"]}
        return {n: p for n, p in self._names.params.items() if id(p) in ids}

    # The loop -------------------------------------------------------------------------------------

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forgets gradients, and the statistics that came with them."""
        super().zero_grad(set_to_none)
        self._fisher.forget()
        self._loss_check.forget()

    def loss(self, outputs: Any, y: Tensor) -> Tensor:
        """The likelihood's own loss of a batch, reduced as ``reduction`` says.

        ``F.cross_entropy(outputs, y)`` is ``optimizer.loss(outputs, y)`` for ``Categorical()``.
        A likelihood that learns along the way, ``Gaussian("rmse")``, needs this one."""
        return self._labels.loss(outputs, y)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One update from the gradients in ``.grad``; a ``closure`` computes them first.

        A step that a GradScaler skips draws no noise and changes nothing. Gradients that are not
        finite are a ``DivergenceError``, and the parameters stay as they were. On several ranks an
        error of one is raised on all of them."""
        loss, scale, mine = None, None, Local({})
        try:
            if closure is not None:
                with torch.enable_grad():
                    loss = closure()
            scale = self._scaling.read(self, statistics=bool(self.preconditioner.requests))
            mine = self._read(scale)
        except Exception as error:
            mine = Local({}, failure=error)
        try:
            agreed = self._agreement.settle(
                mine, self.sampled(), self.reduction, self._fisher.group
            )
        except DivergenceError as error:
            self._fisher.forget()
            self._loss_check.forget()
            raise DivergenceError(f"step {self.steps}: {error}") from None
        if agreed is None or scale is None:
            self._fisher.forget()
            self._labels.forget()
            self._loss_check.forget()
            return loss
        self._take(mine.gradient, scale, *agreed)
        return loss

    def _take(self, gradient: Params, scale: Scale, samples: float, ranks: float) -> None:
        """The step itself, from gradients that have been averaged over the ranks."""
        divisor = scale.gradient
        divisor *= samples / ranks if self.reduction == "sum" else 1.0
        gradient = {k: g if divisor == 1.0 else g / divisor for k, g in gradient.items()}
        statistics = self._fisher.statistics(scale.statistics, samples)
        step = self.steps
        self._follow_schedule(step)
        rates: dict[float, Rates] = {}
        for block in self._layout.blocks:
            block_update.update(self, block, gradient, statistics, step, rates)
        self._labels.commit()
        for group in self.param_groups:
            group["step"] = step + 1
        self._fisher.forget()

    def _read(self, scale: Scale | None) -> Local:
        """What this rank's own passes give; every error here is one that others must hear of."""
        if scale is None:
            return Local({}, skip=True)
        self._fisher.check_strays()
        self._fisher.gather()
        gradient = local_gradient(self.sampled())
        self._fisher.check_seen()
        broken = not_finite(gradient)
        if not broken:
            self._compare_loss(scale.statistics)
        return Local(gradient, self._fisher.samples, broken)

    def _defining(self) -> dict[str, Any]:
        """What the ranks of one network must have in common."""
        own = {"chain": self.chain, "reduction": self.reduction, "parameters": self._shapes()}
        return {k: v for k, v in self.describe().items() if k != "steps"} | own

    def _changing(self) -> dict[str, Any]:
        """The same of this step alone."""
        groups = self.param_groups
        return {
            "step": self.steps,
            "lr": [float(group["lr"]) for group in groups],
            "temperature": [float(group["temperature"]) for group in groups],
        }

    def _shapes(self) -> dict[str, list[int]]:
        return {name: list(p.shape) for name, p in self.sampled().items()}

    def _compare_loss(self, loss_scale: float) -> None:
        """At the first step alone; groups may have been changed since they were made."""
        if self._loss_check.done:
            return
        for group in self.param_groups:
            refuse_ignored(group)
        samples = float(self._fisher.samples) if self.reduction == "mean" else 1.0
        self._loss_check.compare(samples, loss_scale, self._labels.newest())

    def _follow_schedule(self, step: int) -> None:
        if callable(self._lr):
            for group in self.param_groups:
                group["lr"] = self._lr(step)

    @torch.no_grad()
    def init_state(self) -> None:
        """Makes the state that the first step would make: the mean at the parameters themselves,
        and a metric of ones. Needed before ``torch.distributed.checkpoint`` loads into it."""
        for block in self._layout.blocks:
            for k in block:
                block_update.state_of(self, k)

    @property
    def prior(self) -> dict[str, priors.Prior]:
        """The prior of every sampled parameter, by name."""
        return dict(self._prior)

    def learned(self) -> dict[str, Tensor]:
        """What the likelihood has learned, such as a regression's noise variance: (1,) each."""
        return self._labels.learned()

    # What comes out -------------------------------------------------------------------------------

    def collector(self, *, burn_in: int = 0, thin: int = 1, **options: Any) -> Collector:
        """Keeps every ``thin``-th iterate after the first ``burn_in``: see ``Collector``."""
        return Collector(self, burn_in=burn_in, thin=thin, **options)

    def mean(self) -> Params:
        """The running mean theta_mean of every sampled parameter, by name."""
        return {n: self.state[p].get("mean", p.detach()) for n, p in self.sampled().items()}

    @contextmanager
    def at_mean(self) -> Iterator[None]:
        """Inside, the model's parameters are the running mean. No step may be taken meanwhile."""
        sampled = self.sampled()
        saved = {n: p.detach().clone() for n, p in sampled.items()}
        set_values(sampled, self.mean())
        try:
            yield
        finally:
            set_values(sampled, saved)

    def mean_network(self) -> nn.Module:
        """A copy of the model at the running mean."""
        if shards.any_sharded(self.sampled().values()):
            raise ValueError(
                "a sharded network cannot be copied: use it `with optimizer.at_mean()`"
            )
        model, mean = copy.deepcopy(self.model), self.mean()
        remove_hooks(model)
        set_values({n: p for n, p in model.named_parameters() if n in mean}, mean)
        return model

    def remove_hooks(self) -> None:
        """Takes the hooks off the model; the optimizer is of no use afterwards."""
        remove_hooks(self.model)

    def describe(self) -> dict[str, Any]:
        """The configuration in words, for saved posteriors."""
        return {
            "preconditioner": stable_repr(self.preconditioner),
            "prior": {name: stable_repr(p) for name, p in self._prior.items()},
            "likelihood": stable_repr(self.likelihood),
            "step_size": stable_repr(self._lr),
            "mean_rate": stable_repr(self.mean_rate),
            "temperature": [float(self.param_groups[0]["temperature"])],
            "chains": 1,
            "optimizer": type(self).__name__,
            "init": "model",
            "seed": self.seed,
            "num_data": self.num_data,
            "steps": self.steps,
        }
