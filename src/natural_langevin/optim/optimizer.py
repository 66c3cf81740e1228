"""``NaturalLangevin``: Langevin dynamics as a ``torch.optim.Optimizer``, for a loop of one's own.

Dynamics, metrics, priors and noise are those of ``Langevin``: with the same minibatches the
iterates are those of ``Langevin(chains=1)``. What is new is where gradients and statistics come
from, the user's own forward and backward passes (see ``fisher``).
"""

from __future__ import annotations

import copy
import glob
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from natural_langevin import likelihoods, preconditioners, priors, schedules
from natural_langevin._internal.chains import Params
from natural_langevin._internal.fingerprints import stable_repr
from natural_langevin.dynamics import Integrator, Overdamped
from natural_langevin.dynamics.frame import Conditions
from natural_langevin.dynamics.rates import Kind, Rates, RatesTable
from natural_langevin.optim import shards
from natural_langevin.optim.agreement import Agreement, Local
from natural_langevin.optim.capture import remove_hooks
from natural_langevin.optim.collector import Collector
from natural_langevin.optim.fisher import Fisher, Reduction
from natural_langevin.optim.groups import (
    Names,
    as_groups,
    check_number,
    common_settings,
    connected,
    refuse_ignored,
)
from natural_langevin.optim.labels import Labels, LossCheck
from natural_langevin.optim.reading import Scale, Scaling, all_finite, local_gradient, not_finite
from natural_langevin.optim.sharded import ShardedFisher
from natural_langevin.optim.update import Chain, Update
from natural_langevin.run.loop import DivergenceError
from natural_langevin.run.problem.validation import check_arguments, check_counts, check_parameters
from natural_langevin.statistics import Basis

#: Steps whose rates are read from the schedules at once; and of an optimizer that is captured.
ROWS, CAPTURED = 64, 1 << 16


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


def shapes_in(state: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """What a parameter's state holds."""
    return {key: tuple(v.shape) for key, v in state.items() if isinstance(v, Tensor)}


class _Unread(NamedTuple):
    """Whether a step was finite, on its way from the device: the host waits for that step alone,
    not for what has been launched since."""

    finite: Tensor
    arrived: torch.cuda.Event
    step: int

    @staticmethod
    def of(keep: Tensor, step: int) -> _Unread:
        finite = torch.empty(keep.shape, dtype=torch.bool, pin_memory=True)
        finite.copy_(keep, non_blocking=True)
        arrived = torch.cuda.Event()
        arrived.record(torch.cuda.current_stream(keep.device))
        return _Unread(finite, arrived, step)

    def is_finite(self) -> bool:
        self.arrived.synchronize()
        return bool(self.finite)


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

    With g the mean loss gradient over the samples since the last step, one ``step()`` of Algorithm
    1 (``dynamics`` can replace it) is

        v     = g - (1/N) d ln alpha(theta)
        theta = theta - lr C v + sqrt(2 lr T / N) C^{1/2} xi,      xi ~ N(0, Id)

    so ``lr`` is on SGD's scale and may be set by any ``torch.optim.lr_scheduler``.

    - Gradient accumulation: call ``backward()`` on micro-batches of any sizes, whose losses add up
      to the mean (or sum, see ``reduction``) over all samples of the step.
    - Mixed precision: autocast, and GradScaler as with any optimizer.
    - ``state_dict`` holds the running mean, the metric and the step count: a resumed loop gives the
      same bits (with the same ``seed`` and ``num_data``). Schedulers and collectors have their own.
    - The network must be deterministic: ``without_dropout(model)``, BatchNorm in eval mode. Passes
      under ``no_grad``, or without ``backward()``, change nothing.
    - Under ``torchrun``: DistributedDataParallel, or ``fully_shard`` before the optimizer is made;
      then parameters, metric and mean are DTensors, and ``torch.distributed.checkpoint`` saves them
      (call ``init_state()`` before loading). All ranks are one run with the same settings; if a
      rank differs, all raise an error that names it. For one chain per rank, do not wrap the model:
      give every rank its own ``model`` and ``chain=rank``, or use ``Langevin`` under ``torchrun``.
    """

    #: GradScaler hands over its scale and whether it found infinities: see ``scaling``.
    _step_supports_amp_scaling = True

    def __init__(
        self,
        model: nn.Module,
        likelihood: likelihoods.Likelihood,
        *,
        num_data: float,
        lr: float | Tensor | schedules.Schedule = 1e-3,
        prior: priors.PriorLike = priors.Gaussian(variance=0.1),
        preconditioner: preconditioners.Preconditioner | None = None,
        dynamics: Integrator | None = None,
        temperature: float = 1.0,
        params: Any = None,
        reduction: Reduction = "mean",
        mean_rate: float | schedules.Schedule = schedules.inverse_sqrt(),
        seed: int = 0,
        chain: int = 0,
        scaler: Any = None,
        check_loss: bool = True,
        capturable: bool = False,
    ) -> None:
        """An optimizer that samples the trainable parameters of ``model``.

        Args:
            model: The module that the loop calls. Hooks on its layers collect the statistics of the
                metric. It may be wrapped in DistributedDataParallel, or sharded by FSDP2's
                ``fully_shard``.
            likelihood: The likelihood whose mean log-loss the loop differentiates.
            num_data: N, the size of the training set.
            lr: eta, on SGD's scale: a number, or one of ``natural_langevin.schedules``.
            prior: One of ``priors``, or a dictionary from name patterns to priors, in which the
                first match wins.
            preconditioner: The metric, one of ``preconditioners``. None: ``QuasiDiagonalFisher()``.
            dynamics: None: ``dynamics.Overdamped()``, Algorithm 1. Or one with momentum, such as
                ``Underdamped(integrator="baoab")``; momenta start at 0.
            temperature: T. 1 is the posterior.
            params: The parameters to sample. None: every trainable one. Tensors, name patterns, or
                groups with their own ``lr``, ``temperature`` and ``prior``, such as
                ``[{"params": "*.bias", "lr": 1e-4}, {"params": "*"}]``; the first match wins.
            reduction: "mean" or "sum": how the losses between two steps are reduced over all their
                samples.
            mean_rate: mu_t of the running mean.
            seed: Seed of the noise.
            chain: The chain of ``Langevin(seed=seed)`` whose noise is used; loops with the same
                seed and different chains are independent.
            scaler: The GradScaler; needed only with ``scaler.unscale_(optimizer)``.
            check_loss: Whether the first step compares the loss's gradient with the likelihood's. A
                constant factor between them raises an error (see ``labels``).
            capturable: Whether a CUDA graph may record forward pass, backward pass and ``step()``,
                after some ordinary steps, for batches of one shape. The state is then updated in
                place, steps are counted on the device (rates stay constant after ``CAPTURED``
                steps), ``lr`` is a number or a one-element tensor that is changed in place, and a
                step that is not finite is skipped without an error. Call ``collector.update()``
                after a replay.
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
        self.dynamics = _check_dynamics(Overdamped() if dynamics is None else dynamics)
        self.mean_rate, self._lr = mean_rate, lr
        check_parameters(model)
        self._names = Names(model)
        sharded = shards.any_sharded(self._names.params.values())
        watching = ShardedFisher if sharded else Fisher
        self._fisher = watching(model, preconditioner, reduction=reduction)
        self._fisher.group, self._fisher.records = replicas, not capturable
        self._agreement = Agreement(self._defining, self._changing)
        self._labels = Labels(self, self._fisher)
        self._loss_check = LossCheck(likelihood)
        self._loss_check.done = not check_loss
        self._fisher.capture.hand_out = self._loss_check.hand_out
        self._scaling = Scaling(scaler)
        self._prior_like, self._group_priors = prior, dict[str, priors.Prior]()
        self._prior: dict[str, priors.Prior] = {}
        self._blocks: list[tuple[str, ...]] = []  # of names that the metric couples
        self._updates: list[tuple[int, Update]] = []  # each with the number of its group
        self._made_for: object = None  # what the updates depend on
        self._table: RatesTable | None = None
        self.capturable = capturable
        self._unread: _Unread | None = None  # of the last step, on a GPU
        self._run_checked = False
        defaults = {"lr": lr(0) if callable(lr) else lr, "temperature": temperature}
        super().__init__(as_groups(params, self._names), defaults)
        self._table_at(0)  # wrong rates fail here
        if capturable:
            self._refuse_capture()
        self._fisher.basis = self._basis
        self._fisher.due = self._due
        if not sharded and not capturable:
            self._fisher.deferrable = self._deferrable

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies and pickles have settings, state and a model of their own. Statistics since the
        last step, hooks and schedulers are not copied, as in torch."""
        settings = {
            "num_data": self.num_data, "lr": self._lr, "prior": self._prior_like,
            "preconditioner": self.preconditioner, "temperature": self.defaults["temperature"],
            "reduction": self.reduction, "mean_rate": self.mean_rate, "seed": self.seed,
            "chain": self.chain, "scaler": self._scaling.scaler, "dynamics": self.dynamics,
            "capturable": self.capturable,
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
        units = self._units = self._fisher.sample_units(list(sampled))
        if shards.any_sharded(sampled.values()):
            shards.check_shards(sampled, units, self._prior)
        shapes = {n: p.shape for n, p in sampled.items()}
        self._blocks = connected(self.preconditioner, shapes, units)
        self._made_for = None

    @property
    def state(self) -> Any:
        """What ``torch.optim`` keeps of every parameter: running mean, metric, momentum."""
        for _, update in self.__dict__.get("_updates", ()):
            update.publish()
        return self.__dict__["state"]

    @state.setter
    def state(self, value: Any) -> None:
        self.__dict__["state"] = value

    @property
    def steps(self) -> int:
        """Updates done so far."""
        return int(self.param_groups[0]["step"])  # waits for the device where it counts

    def sampled(self) -> dict[str, nn.Parameter]:
        """The parameters that are sampled, by name, in the model's order."""
        ids = {id(p) for group in self.param_groups for p in group["params"]}
        return {n: p for n, p in self._names.params.items() if id(p) in ids}

    # The loop -------------------------------------------------------------------------------------

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clears the gradients and the statistics that were collected with them."""
        super().zero_grad(set_to_none)
        self._fisher.forget()
        self._loss_check.forget()

    def loss(self, outputs: Any, y: Tensor) -> Tensor:
        """The likelihood's own loss of a batch, reduced as ``reduction`` says.

        ``F.cross_entropy(outputs, y)`` is ``optimizer.loss(outputs, y)`` for ``Categorical()``. A
        likelihood that is updated from batches, such as ``Gaussian("rmse")``, needs it."""
        return self._labels.loss(outputs, y)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One update from the gradients in ``.grad``; a ``closure`` computes them first.

        A step that a GradScaler skips draws no noise and changes nothing. Gradients that are not
        finite raise ``DivergenceError`` and leave the parameters unchanged. With several ranks, an
        error on one is raised on all."""
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
        if divisor != 1.0:
            found = torch._foreach_div(list(gradient.values()), divisor)
            gradient = dict(zip(gradient, found, strict=True))
        step: int | Tensor
        if self.capturable:
            step, rates = self._on_device()
        else:
            step = self.steps
            self._follow_schedule(step)
            rates = self._table_at(step).row(step)
        updates = self._current_updates()
        moments = self._fisher.moments(scale.statistics, samples) if rates.kind.adapts else {}
        keep = self._finite_later(gradient, step)
        if not self._run_checked:
            self._check_run(samples)
            self._run_checked = True
        for number, update in updates:
            group, device = self.param_groups[number], update.device
            lr = _on(device, group["lr"], rates.decay.dtype)
            update.step(
                [gradient[k] for k in update.params],
                moments,
                rates.on(lr[None]),
                step=_on(device, step, torch.int64),
                temperature=float(group["temperature"]),
                num_data=self.num_data,
                size=int(samples),
                keep=None if keep is None else keep.to(device),
                in_place=self.capturable,
            )
        self._labels.commit()
        if isinstance(step, Tensor):
            step += 1  # the one that all groups have
        for group in self.param_groups:
            group["step"] = step if isinstance(step, Tensor) else step + 1
        self._fisher.forget()

    def _refuse_capture(self) -> None:
        """Refuses settings that would make a recorded step wait for the host or be wrong."""
        if callable(self._lr) or self.preconditioner.refresh_steps or self._fisher.draw is not None:
            raise ValueError(
                "capturable=True goes with lr as a number or a tensor, a metric without refresh, "
                f'and targets="data", got lr={self._lr!r} and {self.preconditioner!r}'
            )
        place = next(iter(self._names.params.values())).device
        if isinstance(self._lr, Tensor) and self._lr.device != place:
            raise ValueError(
                f"capturable=True reads lr where the parameters are, on {place}, and it is on "
                f"{self._lr.device}: give lr.to({str(place)!r})"
            )
        if self._labels.learned():
            raise ValueError(
                f"{self.likelihood!r} learns on the host: give its value for capturable=True"
            )

    def _on_device(self) -> tuple[Tensor, Rates]:
        """The number of the step, and its rates, both on the device and looked up there."""
        number = self.param_groups[0]["step"]
        first = next(iter(self._names.params.values()))
        started = isinstance(number, Tensor)
        if not started or number.device != first.device:
            number = torch.tensor(int(number), device=first.device)
        table = self._table_at(0)
        kind = Kind(table.adapts_from(0), first=not started and int(number) == 0)
        return number, table.at(number.clamp(max=CAPTURED - 1), kind)

    def _finite_later(self, gradient: Params, step: int | Tensor) -> Tensor | None:
        """On a GPU: whether gradients are finite, (1,) bool, which the host asks for at the next
        step, lest it wait for the device at each. A step that is not finite changes nothing."""
        first = next(iter(gradient.values()))
        if self.capturable:
            return all_finite(gradient)
        if first.device.type == "cpu" or self._everybody():
            return None
        keep = all_finite(gradient)
        self._unread = _Unread.of(keep, int(step))
        return keep

    def _everybody(self) -> list[Any]:
        """The process groups whose ranks take this step together."""
        return shards.groups_of(next(iter(self.sampled().values())), self._fisher.group)

    # What the step is made of ---------------------------------------------------------------------

    def _table_at(self, step: int) -> RatesTable:
        """gamma and mu of a step and those after it, and of what kind they are; eta is every
        group's own."""
        table = self._table
        first = next(iter(self._names.params.values()))
        device, dtype = first.device, first.dtype
        known = table is not None and table.values.device == device and table.values.dtype == dtype
        if table is None or not known or not table.start <= step < table.start + len(table):
            gamma, rows = self.preconditioner.ema_schedule(), CAPTURED if self.capturable else ROWS
            table = self._table = RatesTable.build(
                0.0, gamma, self.mean_rate, start=step, stop=step + rows, chains=1, dtype=dtype,
                device=device, refresh_steps=self.preconditioner.refresh_steps,
            )  # fmt: skip
        return table

    def _due(self) -> bool:
        """Whether the next step takes statistics; one that may be recorded does so always."""
        step = 0 if self.capturable else self.steps
        return self._table_at(step).kind(step).adapts

    def _deferrable(self) -> list[frozenset[str]]:
        updates = self._current_updates()
        return [own for _, update in updates for own in update.deferrable(self.num_data)]

    def _current_updates(self) -> list[tuple[int, Update]]:
        """Everything that is sampled, in parts: one for every group, device and precision.

        Made anew where parameters have been frozen or moved, or a state was loaded."""
        sampled = self.sampled()
        key = [(p.device, p.dtype, p.requires_grad) for p in sampled.values()]
        if key != self._made_for:
            states = self.state
            self._made_for, self._updates = key, []
            for (number, _, _), params in self._parted(sampled).items():
                update = Update(params, states, self._chain(), self._prior, self._units)
                self._updates.append((number, update))
        for block in self._blocks:
            if len(block) > 1 and len(self.param_groups) > 1:
                common_settings(
                    self.param_groups, {k: sampled[k] for k in block}, self.preconditioner
                )
        return self._updates

    def _parted(
        self, sampled: dict[str, nn.Parameter]
    ) -> dict[tuple[int, torch.device, torch.dtype], dict[str, nn.Parameter]]:
        """The parameters that are still trained, in the model's order, by what they share."""
        number_of = {id(p): i for i, g in enumerate(self.param_groups) for p in g["params"]}
        place_of: dict[str, tuple[int, torch.device, torch.dtype]] = {}
        for block in self._blocks:
            first = sampled[block[0]]
            place = (number_of[id(first)], first.device, first.dtype)
            place_of |= {} if _frozen(block, sampled) else dict.fromkeys(block, place)
        found: dict[tuple[int, torch.device, torch.dtype], dict[str, nn.Parameter]] = {}
        for name, p in sampled.items():
            if name in place_of:
                found.setdefault(place_of[name], {})[name] = p
        return found

    def _chain(self) -> Chain:
        return Chain(
            self.dynamics, self.preconditioner, self._fisher.gradients, self.seed, self.chain
        )

    def _check_run(self, samples: float) -> None:
        """Before the first step: whether the dynamics can do with this metric and batch size."""
        for group in self.param_groups:
            lr, temperature = (torch.tensor([float(group[k])]) for k in ("lr", "temperature"))
            run = Conditions(lr, int(samples), self.num_data, adapts=True)
            self.dynamics.check(self._chain().dynamics(self._prior, temperature), run)

    def _basis(self) -> Basis:
        """The basis in which the metric needs the statistics of the next passes; without chain
        axis."""
        found: dict[str, tuple[Tensor, Tensor]] = {}
        if "rotated" in self.preconditioner.requests:
            for _, update in self._current_updates():
                own = self.preconditioner.basis(update.metric)
                found |= {w: (u_a[0], u_g[0]) for w, (u_a, u_g) in own.items()}
        return found

    def _read(self, scale: Scale | None) -> Local:
        """Gradients and statistics of this rank; errors here are shared with the other ranks."""
        if scale is None:
            return Local({}, skip=True)
        self._fisher.check_strays()
        self._fisher.gather(scale.statistics if scale.known else None)
        gradient = local_gradient(self.sampled())
        self._fisher.check_seen()
        self._names.warn_of_thawed()
        broken = self._not_finite(gradient)
        if not broken and scale.known:
            self._compare_loss(scale.statistics)
        return Local(gradient, self._fisher.samples, broken)

    def _not_finite(self, gradient: Params) -> list[str]:
        """Of this step where the host knows it at once, else of the step before."""
        first = next(iter(gradient.values()))
        if self.capturable:
            return []
        if first.device.type == "cpu" or self._everybody():
            return not_finite(gradient)
        if self._unread is None:
            return []
        unread, self._unread = self._unread, None
        if unread.is_finite():
            return []
        for group in self.param_groups:
            group["step"] = unread.step
        return not_finite(gradient) or ["of a parameter"]

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
        self._current_updates()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restores what ``state_dict`` returned, for the same parameters and preconditioner."""
        if not all("step" in group for group in state_dict["param_groups"]):
            raise ValueError("this is the state of another optimizer: it does not count its steps")
        self.init_state()
        numbers = [n for group in state_dict["param_groups"] for n in group["params"]]
        own = [p for group in self.param_groups for p in group["params"]]
        for number, parameter in zip(numbers, own, strict=False):
            there, wanted = state_dict["state"].get(number, {}), shapes_in(self.state[parameter])
            if there and wanted and shapes_in(there) != wanted:
                raise ValueError(
                    f"the state of {self._names.of(parameter)!r} holds {shapes_in(there)} and "
                    f"should hold {wanted}: it is of another model, preconditioner or optimizer"
                )
        super().load_state_dict(state_dict)
        self._made_for, self._updates = None, []

    @property
    def prior(self) -> dict[str, priors.Prior]:
        """The prior of every sampled parameter, by name."""
        return dict(self._prior)

    def learned(self) -> dict[str, Tensor]:
        """The state of the likelihood, such as a regression's noise variance: (1,) each."""
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
        """A context in which the model's parameters are the running mean. Take no step inside
        it."""
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
        """Removes the hooks from the model; the optimizer cannot be used afterwards."""
        remove_hooks(self.model)

    def describe(self) -> dict[str, Any]:
        """The configuration in words, for saved posteriors."""
        return {
            "preconditioner": stable_repr(self.preconditioner),
            "prior": {name: stable_repr(p) for name, p in self._prior.items()},
            "likelihood": stable_repr(self.likelihood),
            "step_size": stable_repr(self._lr),
            "mean_rate": stable_repr(self.mean_rate),
            "dynamics": stable_repr(self.dynamics),
            "temperature": [float(self.param_groups[0]["temperature"])],
            "chains": 1,
            "optimizer": type(self).__name__,
            "init": "model",
            "seed": self.seed,
            "num_data": self.num_data,
            "steps": self.steps,
        }


def _on(device: torch.device, value: float | Tensor, dtype: torch.dtype) -> Tensor:
    """() on the device; a number is filled in there, without a copy from the host."""
    if isinstance(value, Tensor):
        return value.detach().to(device=device, dtype=dtype).reshape(())
    return torch.full((), value, dtype=dtype, device=device)


def _check_dynamics(dynamics: Integrator) -> Integrator:
    """Refuses dynamics that move before the gradient, need two gradients, or compare energies."""
    if not isinstance(dynamics, Integrator):
        raise TypeError(
            f"dynamics must be one of natural_langevin.dynamics, such as Overdamped(), got "
            f"{dynamics!r}"
        )
    if dynamics.compares_energies or dynamics.tunes:
        raise ValueError(
            f"{dynamics!r} evaluates losses by itself, to accept steps or to tune the step size, "
            'which a training loop cannot offer: use Underdamped(integrator="baoab"), or '
            "Langevin(...)"
        )
    if _moves_first(dynamics):
        raise ValueError(
            f"{dynamics!r} needs gradients between two steps, but a training loop computes them "
            'at the parameters: use Underdamped(integrator="baoab"), or Langevin(...)'
        )
    return dynamics


def _moves_first(dynamics: Integrator) -> bool:
    """Whether ``before`` does anything: what does nothing needs nothing to be known."""
    here: Any = object()
    nothing: Any = None
    try:
        return dynamics.before(nothing, here, nothing, 1.0) is not here
    except AttributeError:
        return True


def _frozen(block: tuple[str, ...], params: Mapping[str, nn.Parameter]) -> bool:
    """Whether the whole block is frozen; freezing only a part of it is an error."""
    frozen = [k for k in block if not params[k].requires_grad]
    if frozen and len(frozen) < len(block):
        raise ValueError(
            f"{frozen[0]!r} was frozen after the optimizer was made, but the metric couples it "
            f"with {', '.join(repr(k) for k in block if k not in frozen)}: freeze all of them, "
            "or make a new optimizer"
        )
    return bool(frozen)
