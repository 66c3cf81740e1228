"""The draws that a run has kept, as tensors and as networks."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn

from natural_langevin._internal.chains import Params
from natural_langevin._internal.messages import shown
from natural_langevin._internal.processes import Processes
from natural_langevin._internal.whole_numbers import whole_number
from natural_langevin.data.signature import Signature
from natural_langevin.execution.kernels.native.forward import NativeOutputs
from natural_langevin.likelihoods import Likelihood, detach, weight_name
from natural_langevin.posterior.calibration import check_number
from natural_langevin.posterior.prediction import one_tensor
from natural_langevin.priors import Prior
from natural_langevin.statistics import vectorised, with_parameters
from natural_langevin.statistics.capture import ParameterSlots
from natural_langevin.statistics.in_turn import of_each
from natural_langevin.statistics.vectorised import MODEL_LOCK

Chains = Sequence[int] | Literal["all"] | None


def pooled_chains(config: Mapping[str, Any], chains: Iterable[int]) -> list[int]:
    """Those of ``chains`` that predictions pool: of a ladder whose chains swap, the ones at
    temperature 1 and power 1, for which the others are there; all where there is none."""
    chains = list(chains)
    if "exchange" not in config:
        return chains
    power = config.get("likelihood_power")
    cold = [c for c in chains if config["temperature"][c] == 1 and (not power or power[c] == 1)]
    return cold or chains


def chosen(chains: Chains, healthy: list[int], count: int, config: Mapping[str, Any]) -> list[int]:
    """The ``healthy`` ones among the ``chains`` of ``count`` that a caller asks for; None is all of
    one posterior (``config`` says which chains are alike), and "all" is all."""
    if chains is None or chains == "all":
        wanted = healthy if chains else pooled_chains(config, healthy)
        alike = config.get("alike") or [0] * count
        kinds = sorted({alike[c] for c in wanted})
        if chains is None and len(kinds) > 1:
            groups = [[c for c in wanted if alike[c] == kind] for kind in kinds]
            others = ", ".join(map(str, groups[1:4])) + (", ..." if len(groups) > 4 else "")
            raise ValueError(
                f"the chains have {len(kinds)} temperatures, powers or priors, and so as many "
                f"posteriors: choose with chains={groups[0]} (the others are {others}), or pool "
                'them anyway with chains="all"'
            )
    else:
        wanted = [whole_number("chains", c) for c in chains]
        beyond = [c for c in wanted if not 0 <= c < count]
        if beyond or not wanted:
            raise ValueError(f"chains must be among 0 .. {count - 1}, got {chains!r}")
        wanted = [c for c in wanted if c in healthy]
    if not wanted:
        raise ValueError("every chain diverged: there is nothing to predict with")
    return wanted


class Draws:
    """The samples of all chains and the model that they are weights of (see ``Posterior``)."""

    def __init__(
        self,
        *,
        model: nn.Module,
        likelihood: Likelihood,
        samples: Params,
        mean: Params,
        last: Params,
        diverged: Tensor,
        learned: dict[str, Tensor] | None = None,
        trace: Tensor | None = None,
        config: dict[str, Any] | None = None,
    ) -> None:
        self.likelihood, self.samples, self.mean, self.last = likelihood, samples, mean, last
        self.diverged = diverged  # (chain,) the step at which a chain was stopped, or -1
        self.learned = learned or {}  # the likelihood's own state, one value per chain
        self.trace = trace if trace is not None else torch.empty(0, len(diverged) + 1)
        self.config = config or {}
        self.prior: Mapping[str, Prior] | None = None  # the sampler's; a saved posterior has none
        #: Weights of the network that the run was given, {name: (*shape)}, where predictions give
        #: it weight (see ``calibration``).
        self.trained: Params = {}
        #: Chains are known by their number in the run; those that are here are rows of ``samples``,
        #: ``mean`` and ``last``. Predictions, function values and single networks are exchanged,
        #: and no process ever holds all parameters.
        self.processes = Processes(len(diverged))
        #: The network that samples are weights of; its own weights count for nothing.
        self.template, self._slots = model, ParameterSlots(model)
        #: Outputs of many networks in C, where it knows the model.
        self.native = NativeOutputs(model)
        self.signature = Signature(
            model, discrete=likelihood.discrete, raw=likelihood.raw_outputs,
            several=self.config.get("inputs", 0),
        )  # fmt: skip

    def __repr__(self) -> str:
        weights = sum(p[0].numel() for p in self.last.values())
        lost = self.chains - len(self.healthy)
        return (
            f"Posterior({self.chains} chains x {self.draws} draws of {weights:,} weights of a "
            f"{type(self.template).__name__}, {type(self.likelihood).__name__}"
            + (f", {lost} of the chains diverged)" if lost else ")")
        )

    def _repr_html_(self) -> str:
        names = ("num_data", "steps", "burn_in", "thin", "batch_size", "step_size", "temperature",
                 "preconditioner", "execution", "limit", "effective_temperature")  # fmt: skip
        known = {name: self.config.get(name) for name in names}
        rows = [(name, str(value)) for name, value in known.items() if value is not None]
        lost = [
            f"Chain {chain} diverged at step {int(step)}."
            for chain, step in enumerate(self.diverged)
            if step >= 0
        ]
        return shown(repr(self), rows, lost)

    @property
    def chains(self) -> int:
        """How many chains there are, diverged ones included."""
        return len(self.diverged)

    @property
    def draws(self) -> int:
        """How many draws of every chain are kept."""
        return next(iter(self.samples.values())).shape[1]

    @property
    def healthy(self) -> list[int]:
        """The chains that never diverged."""
        return (self.diverged < 0).nonzero().flatten().tolist()

    @property
    def sharpness(self) -> float:
        """The power to which predictions raise the mean class probabilities; 1.0 is the plain
        mixture. It can be set, and is saved with the posterior."""
        return check_number("sharpness", self.config.get("sharpness", 1.0))

    @sharpness.setter
    def sharpness(self, value: float) -> None:
        self.config = self.config | {"sharpness": check_number("sharpness", value)}

    @property
    def spread(self) -> float:
        """How much of the networks' distance from their mean predictions have (see
        ``calibration``)."""
        return check_number("spread", self.config.get("spread", 1.0), most=1.0)

    def calibrated(self, on: bool = True) -> Self:
        """The same draws with uncalibrated predictions (``False``): without the sharpness, the
        spread and the noise levels that were fitted to held-out rows.

        ``predict``, scores, ``distill``, ``export`` and saved files of the result are uncalibrated
        too. ``True`` returns the posterior as it is."""
        if on:
            return self
        found = copy.copy(self)
        learned = ("sharpness", "spread", "noise_widths", "trained_share")
        found.config = {k: v for k, v in self.config.items() if k not in learned}
        return found

    @property
    def sample_mean(self) -> Params:
        """The mean over every chain's kept draws, {name: (chain, *shape)}: the estimate of the
        posterior's mean. It has less variance than ``mean``, which averages only late iterates."""
        like = self.last
        return {k: s.double().mean(1).to(like[k]) for k, s in self.samples.items()}

    @property
    def sigma(self) -> Tensor | None:
        """A regression's noise level at the end of the run, one value per chain, (chain,); of
        targets whose numbers have noise of different sizes (``likelihoods.Scaled``), (chain, D);
        where it was sampled, (chain, draw)."""
        name, learned = weight_name(self.likelihood), self.learned
        if name is not None:
            learned = learned | {name.partition(".")[2]: self.samples[name][..., 0]}
        variance = self.likelihood.noise_variance(learned)
        if variance is None:
            return None
        return variance.sqrt().expand(self.chains, *variance.shape[1:])

    def network(self, chain: int, draw: int) -> nn.Module:
        """The network of one sample, as a plain nn.Module."""
        draw = whole_number("draw", draw)
        params = self._row_of({name: s[:, draw] for name, s in self.samples.items()}, chain)
        if not all(torch.isfinite(p).all() for p in params.values()):
            raise ValueError(
                f"chain {chain} diverged at step {int(self.diverged[chain])}, before draw {draw}"
            )
        return self._as_module(params)

    def mean_network(
        self,
        chain: int | None = None,
        *,
        average: Literal["running", "samples"] = "running",
        chains: Chains = None,
    ) -> nn.Module:
        """The network at the running mean of one chain, or at the average over healthy chains;
        with ``average="samples"``, at the mean of kept draws (see ``mean``, ``sample_mean``)."""
        if average not in ("running", "samples"):
            raise ValueError(f'average must be "running" or "samples", got {average!r}')
        means = self.mean if average == "running" else self.sample_mean
        if chain is not None:
            return self._as_module(self._row_of(means, chain))
        pooled = self.chosen(chains)
        here = self.processes
        added = {k: here.add_up(m[here.rows(pooled)].sum(0)) for k, m in means.items()}
        return self._as_module({k: total / len(pooled) for k, total in added.items()})

    def chosen(self, chains: Chains) -> list[int]:
        """The healthy ones among ``chains``: None for all of them, if they have one temperature
        and one prior. Others sample different distributions: pooling them must be asked for. Of a
        run with ``exchange``, None means the chains at temperature 1."""
        return chosen(chains, self.healthy, self.chains, self.config)

    def _row_of(self, values: Params, chain: int) -> Params:
        """One chain's part of ``mean`` or ``last``."""
        own, chain = self.processes.own, whole_number("chain", chain)
        if not -self.chains <= chain < self.chains:
            raise IndexError(f"there are {self.chains} chains, got chain={chain}")
        chain %= self.chains
        row = chain - own.start if chain in own else 0
        return self.processes.from_owner(chain, {k: v[row] for k, v in values.items()})

    def _check_whole(self, what: str) -> None:
        """Refuses ``what`` where it would need all parameters at one process."""
        if not self.processes.whole:
            raise ValueError(
                f"{what} needs the parameters of all chains in one process, and they are on "
                "several: posterior.save(folder) on all, then Posterior.load(folder, "
                f"model).{what}(...) in a single process"
            )

    def network_outputs(
        self, x: Tensor, *, most: int | None = None, chains: Chains = None
    ) -> Tensor:
        """Every network's own outputs at ``x``, (network, B, ...), differentiable in ``x``: draws
        of the function, as they are, without calibration.

        Args:
            most: How many networks at most, at equal distances among all draws; None is all.
            chains: As in ``predict``.
        """
        self._check_whole("network_outputs")
        pooled = self.chosen(chains)
        count = len(pooled) * self.draws
        most = count if most is None else min(count, whole_number("most", most))
        if most < 1:
            raise ValueError(f"most must be at least 1 network, got {most}")
        index = torch.arange(most) * count // most
        which = torch.tensor(pooled)[index // self.draws], index % self.draws
        params = {k: s[which].to(self.last[k]) for k, s in self.samples.items()}
        device = next(iter(self.last.values())).device
        return self.outputs(params, self._one_input(x, "network_outputs").to(device))

    def outputs(self, params: Params, x: Tensor) -> Tensor:
        """Outputs of several networks: (network, B, ...)."""
        followed = x.requires_grad and torch.is_grad_enabled()  # C knows no gradients
        found = None if followed else self.native(self.call, params, x)
        if found is not None:
            return found
        return self.each(one_tensor, x, params)

    def of_draws(self, samples: Params) -> Self:
        """A posterior of the same network and likelihood with other draws,
        {name: (chain, draw, *shape)}, and nothing else of this one's run."""
        chains = len(next(iter(samples.values())))
        return type(self)(
            model=self.template, likelihood=self.likelihood, samples=samples,
            mean={k: s.mean(1) for k, s in samples.items()},
            last={k: s[:, -1] for k, s in samples.items()}, diverged=torch.full((chains,), -1),
        )  # fmt: skip

    def of_weights(self, weights: Mapping[str, Tensor]) -> Self:
        """A posterior of the same chains with one draw each: these weights, {name: (*shape)}, and
        of all others the last ones."""
        found = copy.copy(self)
        found.samples = {
            k: v[:, None].clone()
            if k not in weights
            else weights[k].expand(len(v), 1, *v.shape[1:])
            for k, v in self.last.items()
        }
        return found

    def each(
        self, function: Callable[..., Tensor], x: Tensor, params: Params, *trees: Params
    ) -> Tensor:
        """``function`` of each network's outputs at ``x``, and of its part of the ``trees``."""

        def one(own: Params, *rest: Params) -> Tensor:
            return function(self.call(own, x), *rest)

        return of_each(one, self.template, x, params, *trees)

    def call(self, params: Params, x: Tensor) -> Any:
        """What one network gives, whatever that is."""
        with vectorised(x):
            return self.signature.call(partial(self._slots.call, params), x)

    def _one_input(self, x: Any, what: str) -> Tensor:
        found = self.signature.inputs(x)
        if self.signature.packed:
            raise TypeError(
                f"{what} takes networks of one input tensor, and this one has several: wrap it in "
                "a module that takes one and splits it"
            )
        return found

    def _as_module(self, params: Params) -> nn.Module:
        with MODEL_LOCK:  # another thread may have parameters of its own in the model
            return detach(with_parameters(self.template, params))
