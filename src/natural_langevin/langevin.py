"""``Langevin``, the sampler: it checks arguments, runs the chains and returns their posterior."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from natural_langevin import likelihoods, preconditioners, priors, schedules
from natural_langevin._internal import gpu_build, threads
from natural_langevin._internal.processes import Processes
from natural_langevin.data.signature import Signature
from natural_langevin.diagnostics import Kinetic
from natural_langevin.distributed.layout import Layout
from natural_langevin.distributed.process_mesh import ProcessMesh, find_processes
from natural_langevin.dynamics.base import Info, State
from natural_langevin.dynamics.frame import Integrator, LangevinDynamics
from natural_langevin.execution.engine import Engine, choose_mode
from natural_langevin.posterior import stores
from natural_langevin.posterior.plan import Plan
from natural_langevin.posterior.posterior import Posterior
from natural_langevin.posterior.units import in_standard_units
from natural_langevin.recipe import decide, open_settings, rules
from natural_langevin.recipe.decide import Asked, Decided
from natural_langevin.recipe.open_settings import Given
from natural_langevin.recipe.settings import Settings
from natural_langevin.run import description, preparation, temperature_probe
from natural_langevin.run.checkpoint import local_folders, resumed_config
from natural_langevin.run.kept_draws import check_every, check_sample_dtype
from natural_langevin.run.look import Callback
from natural_langevin.run.problem import (
    notices,
    standard_units,
    starts,
    trained,
    validation,
    work,
)
from natural_langevin.run.problem.data_checks import refuse_autocast
from natural_langevin.run.problem.frozen_front import without_front
from natural_langevin.run.problem.motion import Motion, gradients_of
from natural_langevin.run.problem.problem import ChainSet, Problem
from natural_langevin.run.problem.step_size_checks import StepSize, known_step_size
from natural_langevin.run.problem.validation import data_in_one
from natural_langevin.run.problem.work import check_step_memory
from natural_langevin.run.run import Options, run
from natural_langevin.run.time_limit import TimeLimit
from natural_langevin.run.until import parse as parse_until
from natural_langevin.statistics import (
    Network,
    check_hooks,
    plain_copy,
    prepare_model,
    refuse_model,
)

log = logging.getLogger("natural_langevin")


class Langevin:
    """Samples the weights of a network from their posterior, by natural Langevin dynamics.

    >>> net = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 3))
    >>> x, y = torch.rand(64, 2), torch.arange(64) % 3
    >>> sampler = Langevin(net, likelihoods.Categorical(), step_size=1e-3, chains=2)
    >>> posterior = sampler.sample((x, y), steps=30, batch_size=16, burn_in=10, thin=5,
    ...                            progress=False)
    >>> posterior.predict(x).mean.shape
    torch.Size([64, 3])
    """

    def __init__(
        self,
        model: nn.Module,
        likelihood: likelihoods.Likelihood,
        *,
        prior: priors.PriorLike | None = None,
        preconditioner: preconditioners.Preconditioner | None = None,
        step_size: StepSize | Literal["auto"] = "auto",
        dynamics: Integrator | None = None,
        temperature: float | Tensor = 1.0,
        likelihood_power: float | Tensor = 1.0,
        chains: int | None = None,
        num_data: int | None = None,
        init: starts.Init | None = None,
        mean_rate: float | schedules.Schedule | None = schedules.inverse_sqrt(),
        seed: int = 0,
        device: torch.device | str | None = None,
        compile: bool | str = "auto",
        microbatch: int | None = None,
        autocast: torch.dtype | None = None,
        clip: float | None = None,
        control_variates: int | None = None,
        parallel: str | Layout | DeviceMesh | None = "auto",
        recipe: open_settings.RecipeName | Settings | None = None,
        calibrate: bool = True,
        network_of: Langevin | None = None,
    ) -> None:
        """A sampler of the weights of ``model``; whatever is None is decided from the data.

        Args:
            model: Any ``nn.Module``. It is copied, never changed. Frozen parameters stay as they
                are.
            likelihood: How outputs become a distribution over targets, one of ``likelihoods``.
            prior: One of ``priors``, or a dictionary from name patterns to priors, in which the
                first match wins. None: N(0, 2 s / fan_in), its scale s chosen on held-out rows.
            preconditioner: The metric, one of ``preconditioners``. None: ``QuasiDiagonalFisher()``;
                with at most 40 weights the full Fisher matrix, or its blocks by unit.
            step_size: eta, on SGD's scale: a number, one value per chain, a schedule, or "auto".
            dynamics: How chains move, one of ``dynamics``. None: underdamped, BAOAB.
            temperature: T, a number or one value per chain. 1 is the posterior.
            likelihood_power: beta in pi(theta) ~ [alpha(theta) prod_n p(y_n | x_n)^beta]^(1/T),
                above 0, a number or one value per chain: N rows count as beta N.
            chains: How many chains are advanced together. None: as many as ``init`` lists, or four;
                more where ``seconds`` allows more steps than four chains profit from.
            num_data: N, the number of training rows. None: taken from the data.
            init: "model", "fan_in", "prior", or weights: a state dict {name: (*shape)} or {name:
                (chain, *shape)}, or a list of modules or state dicts, one per chain. None: at the
                model if it has learned something, otherwise at random.
            mean_rate: mu_t of the running mean. None: ``posterior.mean`` is the mean of the draws.
            seed: Seed of all random numbers.
            device: Where the run takes place. None: the model's device.
            compile: "auto": the fastest engine that supports the run (C on a CPU, Triton kernels
                and a CUDA graph on a GPU). True: ``torch.compile``. False: eager.
            microbatch: Evaluate minibatches in pieces of at most so many rows: less memory, same
                result.
            autocast: ``torch.bfloat16`` or ``torch.float16`` for the forward pass.
            clip: The largest norm of a chain's likelihood gradient. Where gradients are longer, the
                chain no longer samples the posterior.
            control_variates: Correct minibatch gradients by those of all data at an anchor that
                moves every so many steps (SVRG).
            parallel: Under ``torchrun``, how chains and minibatches are spread: "auto", a
                ``distributed.Layout``, a device mesh, or None, every process for itself. ``chains``
                and values per chain are always those of all processes.
            recipe: The rules that choose every option that is not given. "auto": those of
                ``recipe.settings.Settings``, or your own ``Settings``. "paper": Algorithm 1 with
                QDOP and the prior N(0, 0.1), starting at the model, every iterate kept. None:
                "paper" if a step size or dynamics is given, "auto" otherwise.
            calibrate: Whether the rows held out to choose the prior also calibrate the predictions.
                The draws are the same either way.
            network_of: A sampler of the same model and likelihood, whose copy of the network this
                one shares: what was checked of it, and which engines have proved right on it, is
                not found out again. Not for two threads at once.
        """
        if chains is None and isinstance(init, list | tuple):
            chains = len(init)
        if isinstance(model, nn.Module):
            refuse_model(model)  # whose weights cannot even be counted
        given = open_settings.fill(
            model, likelihood, prior=prior, preconditioner=preconditioner, dynamics=dynamics,
            step_size=step_size, init=init, recipe=recipe, calibrate=calibrate, device=device,
            chains_open=chains is None
            and not any(isinstance(v, Tensor) for v in (temperature, likelihood_power)),
        )  # fmt: skip
        chains = given.settings.chains if chains is None else chains
        start, start_weights = starts.kind_and_weights(given.init, chains)
        validation.check_arguments(
            model, likelihood, given.prior, given.preconditioner,
            start if start_weights is None else "model", given.dynamics,
        )  # fmt: skip
        self.given = given
        self.chains, self.num_data, self.seed = validation.check_counts(chains, num_data, seed)
        validation.check_training(
            microbatch, autocast, clip, given.preconditioner, control_variates, given.dynamics,
            likelihood,
        )  # fmt: skip
        choose_mode(compile)
        check_hooks(model)
        if network_of is None:
            own = plain_copy(model)
            prepare_model(own)
            likelihoods.attach(own, likelihood)
        else:
            own = network_of.model
        first = validation.check_parameters(own)[0]
        where = validation.device_of(device) if device is not None else first.device
        mesh = find_processes(parallel, chains=self.chains, device=where)
        if isinstance(mesh, ProcessMesh):
            where = mesh.device
        gpu_build.start(where)
        if network_of is None:
            validation.to_device(own, where)
            template = copy.deepcopy(own)  # without hooks, for the networks handed out
            signature = Signature(own, discrete=likelihood.discrete, raw=likelihood.raw_outputs)
            network = Network(own, autocast=autocast, signature=signature)
        else:
            template, signature = network_of.problem.template, network_of.signature
            network = network_of.problem.network
        temperatures = validation.check_temperature(temperature, self.chains)
        power = validation.check_power(likelihood_power, self.chains)
        trainable = network.trainable()
        problem = Problem(
            network=network,
            template=template,
            signature=signature,
            likelihood=likelihood,
            prior=priors.resolve(
                likelihoods.with_own(given.prior, likelihood), trainable, self.chains, device=where
            ),
            temperature=temperatures.to(dtype=first.dtype, device=where),
            chains=ChainSet(self.chains, self.seed, where, mesh),
            power=None if power is None else power.to(dtype=first.dtype, device=where),
            num_data=self.num_data,
            microbatch=microbatch,
            clip=clip,
            anchors=control_variates,
        )
        self.motion: Motion = Motion(
            problem, given.preconditioner, given.dynamics,
            step_size=None if given.auto else known_step_size(given.step_size),
            mean_rate=mean_rate, start=start, compile=compile,
            gradients=gradients_of(problem, given.preconditioner)
            if network_of is None
            else network_of.motion.gradients,
            start_weights=starts.check_given(start_weights, trainable, template, self.chains),
        )  # fmt: skip
        self._busy, self._checked = threads.OneAtATime(), preparation.StepChecks()
        self._said: set[str] = set()  # notices are given once
        # Wrong rates fail here rather than at the first step.
        self.motion.rates(0, 1, 0.0 if given.auto else known_step_size(given.step_size))
        check_step_memory(self.frame, network.trainable(), len(self.chain_ids), where)
        self.init()  # a model too large for its metric, or an improper prior, fails here

    @property
    def problem(self) -> Problem:
        """What is sampled, but for the data."""
        return self.motion.problem

    @property
    def frame(self) -> LangevinDynamics:
        """The dynamics of the chains here."""
        return self.motion.frame

    @property
    def model(self) -> nn.Module:
        """The sampler's own copy of the network."""
        return self.problem.network.model

    @property
    def likelihood(self) -> likelihoods.Likelihood:
        """As it was given."""
        return self.problem.likelihood

    @property
    def preconditioner(self) -> preconditioners.Preconditioner:
        """The metric: as it was given, or the default."""
        return self.motion.preconditioner

    @property
    def dynamics(self) -> Integrator:
        """How chains move: as it was given, or the default."""
        return self.motion.integrator

    @property
    def step_size(self) -> StepSize | Literal["auto"]:
        """As it was given."""
        return self.given.step_size

    @property
    def device(self) -> torch.device:
        """Where the chains are."""
        return self.problem.device

    @property
    def mesh(self) -> Processes:
        """The processes that have the chains."""
        return self.problem.chains.processes

    @property
    def chain_ids(self) -> Tensor:
        """The numbers of the chains that are here."""
        return self.problem.chains.ids

    @property
    def signature(self) -> Signature:
        """How the network is called, and which of its outputs counts."""
        return self.problem.signature

    @contextlib.contextmanager
    def _own_network(self) -> Iterator[Motion]:
        """The motion, with a network that no other thread uses meanwhile: hooks are on it."""
        if self._busy.acquire():
            try:
                yield self.motion
            finally:
                self._busy.lock.release()
            return
        problem = self.problem
        network = Network(
            plain_copy(problem.template), autocast=problem.network.autocast,
            signature=problem.signature,
        )  # fmt: skip
        yield self.motion.on(dataclasses.replace(problem, network=network))

    def __repr__(self) -> str:
        weights = sum(p.numel() for p in self.model.parameters() if p.requires_grad)
        return (
            f"Langevin({self.chains} chains of {weights:,} weights of a "
            f"{type(self.model).__name__}, {type(self.likelihood).__name__})"
        )

    @classmethod
    def from_trained(
        cls,
        model: nn.Module,
        likelihood: likelihoods.Likelihood,
        *,
        parameters: str | Iterable[str] = "last",
        held_out: Any = None,
        **options: Any,
    ) -> Langevin:
        """A sampler whose chains start at a trained network.

        Args:
            model: The trained network.
            likelihood: As for ``Langevin``.
            parameters: Which weights are sampled: "last" (the last layer), "all", "adapters" (those
                that the peft package has added), or patterns of names ("*.bias", "head.*"). All
                others stay as trained, and the layers before the first sampled one are computed
                once per row.
            held_out: Rows (x, y) that the network was not trained on; they select the prior's
                scale. On them predictions are never worse than those of the trained network: if the
                posterior's are, the network is mixed in, with the weight
                ``posterior.config["trained_share"]``, which is logged. None: if some weights stay
                fixed, the prior's variance is that of the trained weights; the two are not
                compared, because on its training rows the network looks better than it is.
            options: Those of ``Langevin``. ``prior="anchored"`` is N(w*, s^2) around the trained
                weights w*, s^2 the mean square of each tensor.

        >>> net = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 3))
        >>> sampler = Langevin.from_trained(net, likelihoods.Categorical(), chains=2)
        >>> list(sampler.init().params)
        ['2.weight', '2.bias']
        """
        options = {"init": "model"} | options
        network = trained.chosen(model, parameters)
        if isinstance(given := options.get("prior"), str):
            if given != "anchored":
                raise ValueError(f'prior must be "anchored" or one of priors, got {given!r}')
            options["prior"] = trained.anchored(network)
        if held_out is None and _leaves_prior_open(options):
            scale = trained.prior_scale(network)
            if scale is not None:
                options["prior"] = rules.prior(scale)
        sampler = cls(network, likelihood, **options)
        if held_out is None:
            log.info(
                "predictions were not compared with those of the trained network: give "
                "held_out=(x, y), rows that it has not seen"
            )
        else:
            rows = sampler.signature.split(held_out)
            problem = dataclasses.replace(sampler.problem, held_out=rows)
            sampler.motion = sampler.motion.on(problem)
        return sampler

    def init(self) -> State:
        """The state before the first update."""
        with self._own_network() as motion:
            return motion.init()

    def step(
        self,
        state: State,
        batch: tuple[Tensor, Tensor],
        *,
        chain_axis: bool = False,
        burn_in: int = 0,
    ) -> tuple[State, Info]:
        """Updates all chains once; returns the new state and an ``Info`` about the step.

        Args:
            state: The state that ``init`` or the previous ``step`` returned.
            batch: (x, y), shared by all chains.
            chain_axis: The batch has a chain axis in front: (chain, B, ...).
            burn_in: Burn-in of the run that the step belongs to. After it a metric with
                ``adapt="burn-in"`` is frozen; 0: it follows every batch.

        The first batch is checked like the data of ``sample``; of later ones shape, finiteness and
        range.
        """
        size: StepSize = preparation.DEFAULT_STEP_SIZE  # nothing is searched for one step
        if not self.given.auto:
            size = known_step_size(self.given.step_size)
        with self._own_network() as motion:
            return preparation.single_step(
                motion, state, batch, step_size=size, chain_axis=chain_axis, burn_in=burn_in,
                checked=self._checked,
            )  # fmt: skip

    @data_in_one
    def sample(
        self,
        data: Any,
        steps: int | None = None,
        *,
        seconds: float | None = None,
        until: str | None = None,
        batch_size: int | None = None,
        burn_in: int | None = None,
        thin: int | None = None,
        keep: int | None = None,
        store: str | os.PathLike[str] = "device",
        sample_dtype: torch.dtype | None = None,
        checkpoint: str | os.PathLike[str] | None = None,
        every: int | None = None,
        callback: Callback | None = None,
        exchange: int | None = None,
        plan: Plan | None = None,
        partial: bool = True,
        progress: bool | str = True,
    ) -> Posterior:
        """Runs the chains and returns their posterior.

        Iterate k is the weights after k updates; k = burn_in + thin, burn_in + 2 thin, ... are
        kept, (steps - burn_in) // thin in all. Arguments that are None are chosen by the recipe.
        With a given step size, ``steps`` is required, a minibatch has 100 rows and every iterate is
        kept.

        Args:
            data: (x, y) tensors, arrays or frames; y alone (unsupervised); a Dataset; or a
                DataLoader, whose batch size is used. Every chain has its own order of the rows if
                the dataset can be indexed.
            steps: Updates of every chain.
            seconds: Time limit of the whole call, search included; kept approximately. The result
                is not reproducible.
            until: "ess:400" ends the run when the effective sample size of its predictions is 400;
                ``steps`` and ``seconds`` are then upper limits.
            batch_size: Rows of a minibatch.
            burn_in: Updates before the first draw.
            thin: Updates from one draw to the next.
            keep: The most draws kept of every chain; ``thin`` is doubled as often as needed.
            store: Where draws are stored: "device", "cpu", or a folder, to which each is written as
                it is drawn; or a URL of fsspec, "s3://bucket/name", to which they are sent with
                every checkpoint and at the end.
            sample_dtype: ``torch.bfloat16`` or ``torch.float16`` halves the memory of a float32
                draw.
            checkpoint: A folder or URL. The run is written there, and continues from there with the
                same bits if it holds a checkpoint of the same run; with more ``steps``, beyond its
                end.
            every: Steps between checkpoints; None: about a minute.
            callback: Called with a ``run.look.Look`` every 50 steps, more often if the run may end
                early.
            exchange: Parallel tempering: every so many steps, chains of neighbouring
                ``temperature`` or ``likelihood_power`` propose to swap their weights. Predictions
                use the chains at temperature and power 1.
            plan: A plan that ``plan`` returned, changed or not: exactly this is run. Other
                arguments given here replace its values.
            partial: Whether Ctrl-C without a checkpoint returns the draws kept so far, or raises.
            progress: Show a progress bar.
        """
        asked = Asked(
            steps=steps, seconds=seconds, until=until, batch_size=batch_size, burn_in=burn_in,
            thin=thin, keep=keep, exchange=exchange,
        )  # fmt: skip
        options = Options(
            where=stores.location(store), dtype=self._stored(sample_dtype),
            checkpoint=checkpoint, every=check_every(every), callback=callback, progress=progress,
            said=self._said, partial=partial,
        )  # fmt: skip
        return self.sampled(data, asked, options, plan)

    def sampled(
        self, data: Any, asked: Asked, options: Options, plan: Plan | None = None
    ) -> Posterior:
        """``sample`` with its arguments in two parts: what a plan is made of, and the rest."""
        asked = _in_force(asked, plan)
        # One that may be gone on with has its steps counted: it ends with the same bits.
        limit = self._limit(asked, ends=options.checkpoint is None)
        refuse_autocast(self.device)
        with (
            local_folders(options.checkpoint, options.where, self.mesh) as local,
            self._own_network() as motion,
            self._threads(),
        ):
            options = dataclasses.replace(options, limit=limit, **local._asdict())
            motion = motion.on(_easier(motion.problem.on(data), self.given, plan))
            if plan is None:
                plan, begin = self._decided(motion, asked, options)
                options = dataclasses.replace(options, begin=begin)
            else:
                there = resumed_config(options.checkpoint, self.mesh)
                plan = decide.adopted(motion, self.given, plan, asked, there, limit)
            return run(decide.follow(motion, plan), plan, options)

    @data_in_one
    def plan(
        self,
        data: Any,
        steps: int | None = None,
        *,
        seconds: float | None = None,
        until: str | None = None,
        batch_size: int | None = None,
        burn_in: int | None = None,
        thin: int | None = None,
        keep: int | None = None,
        exchange: int | None = None,
    ) -> Plan:
        """Decides everything that ``sample`` with the same arguments would do, without running it.

        Only the search for options that are not given is run: a pilot for the step size, trials of
        the prior's scale. ``print(plan)`` is a table with a reason for every line;
        ``plan.to_json()`` and ``Plan.from_json`` store and restore it; ``dataclasses.replace``
        changes it; and ``sample(data, plan=plan)`` runs exactly it.

        >>> net = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1))
        >>> x = torch.rand(64, 2)
        >>> sampler = Langevin(net, likelihoods.Gaussian(sigma=0.1), step_size=1e-3, chains=2)
        >>> plan = sampler.plan((x, x.sum(1, keepdim=True)), steps=100)
        >>> print(str(plan).splitlines()[0])
        Plan by the recipe 'paper': 100 steps, minibatches of 64
        """
        asked = Asked(
            steps=steps, seconds=seconds, until=until, batch_size=batch_size, burn_in=burn_in,
            thin=thin, keep=keep, exchange=exchange,
        )  # fmt: skip
        asked = _in_force(asked)
        options = Options(limit=self._limit(asked))
        with self._own_network() as motion, self._threads():
            problem = _easier(motion.problem.on(data), self.given, None)
            return self._decided(motion.on(problem), asked, options).plan

    def _decided(self, motion: Motion, asked: Asked, options: Options) -> Decided:
        there, title = resumed_config(options.checkpoint, self.mesh), options.progress
        if title and self.given.by_recipe and not there:
            notices.announce(motion.problem, title if isinstance(title, str) else "sampling")
        known = Plan.from_config(there)
        if known is not None and decide.is_of(known, self.given):
            phase, steps = int(there.get("phase", 0)), int(there["steps"])
            plan = decide.resumed(motion, self.given, known, asked, phase=phase, steps=steps)
            return Decided(plan)
        return decide.decide(motion, self.given, asked, options.limit)

    def _limit(self, asked: Asked, *, ends: bool = False) -> TimeLimit:
        """The limit of a call, but not of several processes, which must all choose the same."""
        parse_until(asked.until)  # refused here where it is no target
        limit = TimeLimit(asked.seconds, self.given.settings.time, ends=ends)
        return limit if self.mesh.world == 1 else TimeLimit()

    def _stored(self, dtype: torch.dtype | None) -> torch.dtype | None:
        # Not of the network, which another thread may be calling with other weights.
        first = next(p for p in self.problem.template.parameters() if p.requires_grad)
        return None if dtype is None else check_sample_dtype(dtype, first.dtype)

    def _threads(self) -> contextlib.AbstractContextManager[None]:
        return threads.one() if work.is_small(self.problem) else contextlib.nullcontext()

    def effective_temperature(
        self, data: Any, *, posterior: Posterior | None = None, steps: int = 50,
        batch_size: int | None = None, plan: Plan | None = None,
    ) -> Kinetic:  # fmt: skip
        """The temperature implied by noise and drift of single steps (see ``diagnostics.kinetic``);
        1 is right.

        ``steps`` steps are taken on ``data`` from where ``posterior`` ended, with the step size and
        the batch size of its plan, or from the start, with those of ``plan`` or chosen now.
        ``sample`` takes a few at the end of a run too, for ``posterior.diagnose``.
        """
        if posterior is not None and plan is None:
            plan = posterior.plan
        with self._own_network() as motion:
            engine, state = self._prepared(motion, data, steps, batch_size, None, 0, plan)
            if posterior is not None:
                inside = in_standard_units(posterior)[0]
                state = temperature_probe.at_end_of(inside, state)
            return temperature_probe.required(engine, state, steps, self.mesh)

    def prepare(
        self,
        data: Any,
        *,
        steps: int,
        batch_size: int | None = None,
        step_size: StepSize | None = None,
        burn_in: int = 0,
        plan: Plan | None = None,
    ) -> tuple[Engine, State]:
        """Everything ``sample`` does before its first step: an engine on this data, and a state.

        Where the sampler's step size is "auto" and none is given, it is that of ``plan``, or is
        chosen now; the batch size likewise, otherwise 100 or all. With ``adapt="burn-in"`` the
        metric is frozen from step ``burn_in`` on; without burn-in it is never frozen."""
        return self._prepared(self.motion, data, steps, batch_size, step_size, burn_in, plan)

    def _prepared(
        self,
        motion: Motion,
        data: Any,
        steps: int,
        batch_size: int | None,
        step_size: StepSize | None,
        burn_in: int,
        plan: Plan | None,
    ) -> tuple[Engine, State]:
        problem = motion.problem.on(data)
        if plan is not None and plan.units is not None:
            problem = standard_units.in_units(problem, plan.units)
        motion = motion.on(problem)
        if plan is None and step_size is None and self.given.by_recipe:
            asked = Asked(batch_size=batch_size)
            plan = decide.decide(motion, self.given, asked).plan
        if plan is not None:
            motion, batch_size = decide.follow(motion, plan), batch_size or plan.batch_size
            step_size = plan.schedule() if step_size is None else step_size
        return preparation.engine(
            motion, steps=steps, burn_in=burn_in,
            batch_size=preparation.open_batch(motion) if batch_size is None else batch_size,
            step_size=known_step_size(self.given.step_size) if step_size is None else step_size,
        )  # fmt: skip

    def log_density(
        self, weights: Mapping[str, Tensor], data: Any, *, plan: Plan | None = None
    ) -> Tensor:
        """The unnormalised log posterior of given weights, at temperature 1, in nats:

            ln alpha(theta) + (beta N / n) sum_n ln p(y_n | x_n, theta),

        n the rows of ``data``, N = n unless ``num_data`` says otherwise, beta the power of the
        likelihood. ``weights``: {name: (*shape)} of all sampled parameters, for a number; with a
        leading axis, for one each. Prior and beta are the first chain's; if the prior's scale was
        not given, it is that of ``plan`` (``posterior.plan``), or the default's. The result can be
        differentiated."""
        problem = self.problem.on(data)
        if plan is not None:
            problem = decide.follow(self.motion.on(problem), plan).problem
            if plan.units is not None:
                problem = standard_units.in_units(problem, plan.units)
        elif self.given.scale_open and self._has_units(problem):
            raise ValueError(
                "sample() would rescale these data to standard units, which the run chooses: "
                "give plan=posterior.plan, or use posterior.log_density(data)"
            )
        return problem.log_density(weights)

    def _has_units(self, problem: Problem) -> bool:
        """Whether a run would put the data into standard units."""
        return standard_units.find(problem, self.given.settings.start) is not None

    def describe(self) -> dict[str, Any]:
        """The configuration in words, for results and saved posteriors."""
        return description.settings(self.motion)


def _in_force(asked: Asked, plan: Plan | None = None) -> Asked:
    """The arguments with the plan's target, and its seconds if these were changed since it was
    made: its steps are others then. Without seconds beside steps, where only a target ends a run
    earlier."""
    if plan is not None:
        until = plan.until if asked.until is None else asked.until
        changed = asked.seconds is None and asked.steps is None and plan.seconds_changed
        seconds = plan.seconds if changed else asked.seconds
        asked = dataclasses.replace(asked, until=until, seconds=seconds)
    if asked.seconds is None or asked.steps is None or asked.until is not None:
        return asked
    log.warning("seconds=%s is not used beside steps=%s", asked.seconds, asked.steps)
    return dataclasses.replace(asked, seconds=None)


def _leaves_prior_open(options: Mapping[str, Any]) -> bool:
    """Whether a sampler with these options would choose its prior's scale."""
    given = {k: options.get(k) for k in ("prior", "dynamics")}
    size = options.get("step_size", "auto")
    return given == {"prior": None, "dynamics": None} and isinstance(size, str)


def _easier(problem: Problem, given: Given, plan: Plan | None) -> Problem:
    """The problem in a form that is easier to sample: data of unusual size in standard units, the
    fixed front of a network computed beforehand."""
    if plan is not None and plan.units is not None:
        return standard_units.in_units(problem, plan.units)
    whole = plan is None and problem.held_out is None
    if whole and given.scale_open and given.start_open:
        found = standard_units.to_standard_units(problem, given.settings.start)
        if found is not problem:
            return found
    return without_front(problem)
