"""``Langevin``: the sampler a user holds. Checks arguments, runs the engine, keeps samples."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import logging
import math
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.utils.data import DataLoader, TensorDataset

from natural_langevin import likelihoods, models, preconditioners, priors, random, schedules
from natural_langevin._internal.fingerprints import exact_settings, stable_repr
from natural_langevin._internal.light_autograd import eager
from natural_langevin._internal.one_at_a_time import OneAtATime, exclusive
from natural_langevin._internal.provenance import provenance
from natural_langevin.data.signature import Signature
from natural_langevin.data.streams import (
    Batch,
    InMemory,
    Loader,
    SharedBatches,
    Stream,
    Subsets,
    SymmetricSweeps,
    as_stream,
    check_finite,
    split_pair,
    usual_batch,
)
from natural_langevin.diagnostics import Kinetic
from natural_langevin.distributed.layout import Layout
from natural_langevin.distributed.posterior_shards import shard_posterior
from natural_langevin.distributed.process_mesh import ProcessMesh, find_processes
from natural_langevin.distributed.run_setup import (
    check_same_everywhere,
    open_checkpoint,
    resumed_config,
)
from natural_langevin.dynamics.base import Info, Integrator, State
from natural_langevin.dynamics.frame import LangevinDynamics
from natural_langevin.dynamics.overdamped import Overdamped
from natural_langevin.dynamics.rates import RatesTable
from natural_langevin.execution.engine import Engine, choose_mode
from natural_langevin.likelihoods import LogLoss
from natural_langevin.posterior import networks, stores
from natural_langevin.posterior.posterior import Posterior, pooled_chains
from natural_langevin.posterior.weighting import draw_weights
from natural_langevin.sampling import (
    density,
    notices,
    planning,
    recipe,
    rounding,
    step_size_search,
    temperature_probe,
    trained,
    warm_up,
)
from natural_langevin.sampling.collector import SampleCollector
from natural_langevin.sampling.exchange import ReplicaExchange
from natural_langevin.sampling.footprint import check_step_memory
from natural_langevin.sampling.look import Callback
from natural_langevin.sampling.loop import DivergenceError, RunPlan, run
from natural_langevin.sampling.pitfalls import refuse_autocast
from natural_langevin.sampling.until import Target
from natural_langevin.sampling.until import parse as parse_until
from natural_langevin.sampling.validation import (
    StepSize,
    batch_check,
    check_arguments,
    check_counts,
    check_data,
    check_every,
    check_given,
    check_memory,
    check_parameters,
    check_sample_dtype,
    check_stages,
    check_temperature,
    check_thinning,
    check_training,
    known_step_size,
    outputs_of_few,
    refuse_anchors,
    warn_if_epochs,
    warn_if_saturated,
    warn_if_stiff,
    whole_number,
)
from natural_langevin.sampling.watching import Watching
from natural_langevin.statistics import Gradients, Network, plain_copy, prepare_model

log = logging.getLogger("natural_langevin")

#: Data that say themselves which rows come when: they are taken as they are.
ORDERED = (DataLoader, SharedBatches, Subsets, SymmetricSweeps)
#: Where dynamics that tune their step size begin.
TUNED_FROM = 0.1
#: Its sum diverges: a longer run explores further (``halving``'s would stop at 20).
DEFAULT_STEP_SIZE = schedules.polynomial(1e-3, offset=10_000)


class Langevin:
    """Natural Langevin dynamics on a network's weights (see ``langevin`` for the equation).

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
        chains: int = 4,
        num_data: int | None = None,
        init: str | None = None,
        mean_rate: float | schedules.Schedule | None = schedules.inverse_sqrt(),
        seed: int = 0,
        device: torch.device | str | None = None,
        compile: bool | str = "auto",
        microbatch: int | None = None,
        autocast: torch.dtype | None = None,
        clip: float | None = None,
        control_variates: int | None = None,
        parallel: str | Layout | DeviceMesh | None = "auto",
    ) -> None:
        """``mean_rate`` is mu_t of the running mean; None keeps none, and ``posterior.mean`` is the
        mean of the kept draws. docs/api/sampler.md has the other arguments.

        With ``step_size="auto"``, the default, everything that is left open follows the recipe
        (``sampling.recipe``): dynamics, metric, prior by fan-in with its scale chosen on held-out
        rows, start, step size, and the length of ``sample``. ``posterior.config["recipe"]`` says
        what was chosen, and why. With ``dynamics`` of one's own, "auto" is the step-size search of
        ``choose_step_size``.

        With a step size of one's own, what is left open is the paper's: ``dynamics.Overdamped()``,
        Algorithm 1, with QDOP, the prior N(0, 0.1), starting at the model.

        ``microbatch``: every chain's minibatch in pieces of at most so many samples, for less
        memory and the same result. ``autocast``: torch.bfloat16 or torch.float16 for the forward
        pass. ``clip``: the largest norm of a chain's likelihood gradient; the chain then no longer
        samples the posterior where gradients are longer. ``control_variates``: minibatch gradients
        are corrected by those of all data at an anchor that moves every so many steps (SVRG, see
        ``dynamics.control_variates``). ``parallel``: under ``torchrun``, "auto"
        spreads the chains over the processes and shares their minibatches where there are more
        processes than chains; ``distributed.Layout(chains=2, data=4)`` says how; None: every
        process for itself. ``chains`` and values per chain are always those of all processes."""
        self._auto = isinstance(step_size, str) and step_size == "auto"
        if self._auto and isinstance(dynamics, Integrator) and dynamics.tunes:
            step_size, self._auto = TUNED_FROM, False
        self._by_recipe = self._auto and dynamics is None
        self._scale_open = self._by_recipe and prior is None
        if prior is None:
            prior = recipe.prior() if self._by_recipe else priors.Gaussian(variance=0.1)
        if init is None:
            init = "auto" if self._by_recipe else "model"
        if self._by_recipe:
            usual_metric = recipe.metric(model) if preconditioner is None else preconditioner
            preconditioner = recipe.averaged(usual_metric)
        elif preconditioner is None:
            preconditioner = preconditioners.QuasiDiagonalFisher()
        usual = recipe.dynamics() if self._by_recipe else Overdamped()
        self.dynamics = usual if dynamics is None else dynamics
        check_arguments(model, likelihood, prior, preconditioner, init, self.dynamics)
        self.chains, self.num_data, self.seed = check_counts(chains, num_data, seed)
        self.model = plain_copy(model)  # the user's own is never touched
        prepare_model(self.model, log)
        trainable = check_parameters(self.model)
        self.device = torch.device(device) if device is not None else trainable[0].device
        self.mesh = find_processes(parallel, chains=self.chains, device=self.device)
        if isinstance(self.mesh, ProcessMesh):
            self.device = self.mesh.device
        self.model.to(self.device)
        self._training = check_training(
            microbatch, autocast, clip, preconditioner, control_variates, self.dynamics, likelihood
        )
        self.likelihood, self.preconditioner = likelihood, preconditioner
        self.step_size, self.mean_rate, self.compile = step_size, mean_rate, compile
        choose_mode(compile)
        # Wrong rates fail here rather than at the first step.
        self._rates_table(0, 1, 0.0 if self._auto else None)

        self.chain_ids = torch.tensor(self.mesh.own, device=self.device)  # of the chains here
        self._template = copy.deepcopy(self.model)  # without hooks, for the networks handed out
        #: How the network is called, and which of its outputs counts.
        self.signature = Signature(
            self.model, discrete=likelihood.discrete, raw=isinstance(likelihood, LogLoss)
        )
        network = Network(self.model, autocast=autocast, signature=self.signature)
        self._prior = priors.resolve(prior, network.trainable(), self.chains, device=self.device)
        self._temperature = check_temperature(temperature, self.chains).to(
            dtype=trainable[0].dtype, device=self.device
        )
        self._dynamics = LangevinDynamics(
            self.dynamics,
            gradients=Gradients(
                network,
                likelihood,
                requests=preconditioner.requests,
                targets=preconditioner.targets,
                sharing=preconditioner.sharing,
                microbatch=microbatch,
                clip=clip,
                data_parallel=self.mesh.data,
            ),
            preconditioner=preconditioner,
            prior=priors.of_chains(self._prior, self.chain_ids),
            temperature=self._temperature[self.chain_ids],
            noise=random.origin(self.seed, random.NOISE, self.chain_ids),
            labels=random.origin(self.seed, random.LABELS, self.chain_ids),
            keep_mean=mean_rate is not None,
            control_variates=control_variates,
        )
        self._start, self._step_checked = init, 0  # batch size of the last check
        self._downhill = False  # whether chains go downhill before their burn-in
        #: What step_size="auto" turned out to be, and the batch size it was chosen for.
        self._settled: tuple[StepSize, int] | None = None
        self._noticed = False
        self._options: dict[str, Any] | None = None  # of ``from_trained``
        self._owner = self  # whose network the posterior's is
        #: Rows (x, y) that choose the prior's scale in place of folds of the data.
        self.held_out: Batch | None = None
        self._busy = OneAtATime()
        check_step_memory(self._dynamics, network.trainable(), len(self.chain_ids), self.device)
        self.init()  # a model too large for its metric, or an improper prior, fails here

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
        """A sampler around a trained network, and beyond it: chains start at its weights.

        ``parameters``: which weights are sampled: "last", those of the last layer; "all"; or
        patterns of names ("*.bias", "head.*"). All others stay as they were trained. ``held_out``:
        (x, y) that the network was not trained on, by which the prior's scale is chosen. Without
        them, rows of the training data would choose it where other weights are fixed, which have
        seen them: there the prior's variance is that of the trained weights. ``options`` are those
        of ``Langevin``; what is left open follows the recipe. With the last layer alone, the
        network before it is evaluated once for every sample.

        >>> net = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 3))
        >>> sampler = Langevin.from_trained(net, likelihoods.Categorical(), chains=2)
        >>> list(sampler.init().params)
        ['2.weight', '2.bias']
        """
        options = {"init": "model"} | options
        sampler = cls(trained.chosen(model, parameters), likelihood, **options)
        sampler._options = options
        if held_out is not None:
            sampler.held_out = sampler.signature.split(held_out)
        elif sampler._scale_open and any(not p.requires_grad for p in sampler.model.parameters()):
            options["prior"] = recipe.prior(trained.size(sampler.init().params))
            sampler._set_prior(options["prior"])
            sampler._scale_open = False
            log.info(
                "the prior's variance is that of the trained weights: rows that the fixed weights "
                "were trained on cannot choose it. Give held_out=(x, y), rows they have not seen"
            )
        return sampler

    def _of_features(self, data: Any) -> tuple[Langevin, Any] | None:
        """The last layer's own sampler, and its data, where nothing else is sampled."""
        if self._options is None or isinstance(data, ORDERED):
            return None
        x, y = self._in_tensors(data)
        found = trained.split_off(self.model, self.signature, x.to(self.device))
        if found is None:
            return None
        inner = type(self)(found[0], self.likelihood, **self._options)
        inner._owner = self
        if self.held_out is not None:
            x_out, y_out = self.held_out
            again = trained.split_off(self.model, self.signature, x_out.to(self.device))
            assert again is not None
            inner.held_out = again[1], y_out
        return inner, (found[1], y)

    def init(self) -> State:
        """The state before the first update."""
        return self._start_of(self._dynamics, self.chain_ids)

    def _start_of(self, dynamics: LangevinDynamics, chain: Tensor) -> State:
        """The same for chains of these identities under these dynamics."""
        params = dynamics.gradients.network.trainable()
        if self._start == "fan_in":
            start = models.fan_in_init(params, chain=chain, seed=self.seed)
        elif self._start == "prior":
            start = {}
            for index, (name, p) in enumerate(params.items()):
                key = random.stream(random.origin(self.seed, random.INIT, chain), index)
                start[name] = dynamics.prior[name].sample(key, tuple(p.shape), p.dtype)
        else:
            # Row by row, whatever the strides of the model's own: kernels read memory as it lies.
            start = {
                k: p.expand(len(chain), *p.shape).clone(memory_format=torch.contiguous_format)
                for k, p in params.items()
            }
        return dynamics.init(start)

    @exclusive
    @eager
    def step(
        self,
        state: State,
        batch: tuple[Tensor, Tensor],
        *,
        chain_axis: bool = False,
        burn_in: int = 0,
    ) -> tuple[State, Info]:
        """One update. The batch is shared by all chains unless ``chain_axis``: (chain, B, ...).

        ``burn_in``: that of the run which the step belongs to, as in ``sample``: from there on a
        metric with ``adapt="burn-in"`` stands still. 0: it follows every batch.

        The first batch that a sampler sees here is checked like the data of ``sample``."""
        refuse_autocast(self.device)
        refuse_anchors("step()", self._dynamics)
        if self.num_data is None:
            raise ValueError(
                "step() cannot see how many data there are: give Langevin(..., num_data=N). "
                "N sets the weight of the prior and the size of the noise"
            )
        split = split_pair if chain_axis else self.signature.split
        x, y = (t.to(self.device) for t in split(batch))
        one = (x[0], y[0]) if chain_axis else (x, y)
        if not self._step_checked:  # at the start: ``state`` may hold a diverged chain
            check_finite("x", one[0])
            check_finite("y", one[1])
            check_data(self._dynamics.gradients, self.init(), *one, targets=one[1])
        self._dynamics.gradients.prepare(state.params, one[0])
        done = int(state.step)
        size: StepSize | None = None
        if self._auto:  # nothing is searched for one step
            size = self._settled[0] if self._settled else DEFAULT_STEP_SIZE
        table = self._rates_table(done, done + 1, size, burn_in=burn_in)
        rates = table.of_chains(self.chain_ids).row(done)
        if self._step_checked != len(one[0]):
            self.dynamics.check(
                self._dynamics, step_size=rates.step_size, batch_size=len(one[0]),
                num_data=self.num_data, adapts=rates.kind.adapts and not burn_in,
            )  # fmt: skip
            self._step_checked = len(one[0])
        return self._dynamics.step(state, (x, y), rates, self.num_data, chain_axis=chain_axis)

    @exclusive
    @eager
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
        progress: bool | str = True,
    ) -> Posterior:
        """Runs ``steps`` updates and keeps every ``thin``-th iterate after the first ``burn_in``.

        Iterate k is the parameter after k updates; k = burn_in + thin, burn_in + 2 thin, ... are
        kept, (steps - burn_in) // thin in all. ``data``: (x, y) tensors, y alone (unsupervised), a
        TensorDataset, or a DataLoader, whose own batch size counts: every chain gets an order of
        its own where its dataset can be indexed (see ``data.loaders``). N is what it yields in an
        epoch, unless ``num_data`` says otherwise.

        What is left open follows from N, the network and the step size (``sampling.recipe``); with
        a step size of one's own, ``steps`` is needed, the minibatch is 100 and every iterate is
        kept. ``seconds`` in place of ``steps``: as many as fit, by the pace of the first ones.
        ``until="ess:400"`` ends the run when the effective sample size of its predictions is 400;
        ``steps`` and ``seconds`` are then the most it may take (left open: ten times what the
        recipe would run). ``posterior.config["limit"]`` and the log say which was reached.

        ``callback`` is shown the run every 50 steps (``sampling.look.Look``: losses, temperature,
        acceptance); ``integrations.tensorboard.TensorBoard(folder)`` is one.

        ``exchange=k``: before every k-th step chains of neighbouring ``temperature`` propose to
        swap their weights (``sampling.exchange``), on data in memory. Predictions then use the
        chains at temperature 1, and ``posterior.config["exchange"]`` has the swap rate of every
        pair.

        ``keep=M`` keeps at most M samples of every chain by doubling ``thin`` as often as needed
        (``posterior.config["thin"]`` says what was used). Samples are stored on the sampler's
        device, in the machine's memory (``store="cpu"``), or in a folder (``store="folder"``),
        where each is written as it is drawn, and read from there when it is needed;
        ``posterior.save`` of the same folder leaves them there. ``sample_dtype=torch.bfloat16``
        (or float16) halves what a float32 sample takes; predictions compute in the model's dtype.

        With ``checkpoint="folder"`` the run is written there every ``every`` steps (default: about
        once a minute, and when Ctrl-C or SIGTERM comes), and goes on from there when the folder
        holds a checkpoint of the same run. Folders of a run under way are locked.
        """
        arguments = {k: v for k, v in locals().items() if k not in ("self", "data")}
        if (apart := self._of_features(data)) is not None:
            inner, features = apart
            posterior = inner.sample(features, **arguments)
            self._settled, self._prior = inner._settled, inner._prior
            self._dynamics = dataclasses.replace(
                self._dynamics, prior=inner._dynamics.prior, integrator=inner.dynamics
            )
            return posterior
        chosen: recipe.Choice | step_size_search.Choice | None = None
        refuse_autocast(self.device)
        wanted = parse_until(until)
        data = self._in_tensors(data)
        check_given(steps=steps, burn_in=burn_in, thin=thin, batch_size=batch_size)
        if self._by_recipe:
            with self.mesh.together("choosing what was left open"):
                known = recipe.Choice.from_config(resumed_config(checkpoint, self.mesh))
                batch_size, chosen, lengths = planning.plan(
                    self, data, batch_size, known, steps=steps, burn_in=burn_in, thin=thin,
                    seconds=seconds, until=wanted is not None,
                )  # fmt: skip
            steps, burn_in, thin = lengths.steps, lengths.burn_in, lengths.thin
        batch_size = whole_number(
            "batch_size", usual_batch(data) if batch_size is None else batch_size
        )
        if steps is None and seconds is not None and wanted is None:
            steps = planning.steps_within(self, seconds, data, batch_size)
        if steps is None:
            raise ValueError(
                "steps must be said where the step size is: sample(data, steps=...); with "
                'step_size="auto", the default, a run knows its own length. With until=, steps is '
                "the most that may be taken"
            )
        steps, burn_in = whole_number("steps", steps), whole_number("burn_in", burn_in or 0)
        explores = schedules.stages(self.step_size)
        thin, draws = check_thinning(
            steps, burn_in, whole_number("thin", 1 if thin is None else thin), keep, explores
        )
        plan = RunPlan(steps, burn_in, thin, check_every(every), explores=explores)
        where, params = stores.location(store), self.init().params
        dtype = check_sample_dtype(sample_dtype, next(iter(params.values())).dtype)
        specs = networks.specs(params, draws, dtype)
        with self.mesh.together("preparing the run"):
            check_memory(specs, where, self.device)
            if self._auto and not self._by_recipe:
                chosen = self._chosen(data, steps, batch_size, checkpoint)
            step_size = None if chosen is None else chosen.schedule_of(burn_in)
            if chosen is not None:
                self._settled = (chosen.schedule_of(0), batch_size)
            engine, state = self.prepare(
                data, steps=steps, batch_size=batch_size, step_size=step_size, burn_in=burn_in
            )
            if self._downhill and self.mesh.data is None:
                stream = engine.stream
                if not isinstance(stream, InMemory):
                    x, y, _ = recipe.rows_of(data, self.num_data, self.signature.split)
                    stream = InMemory(
                        x, y, batch_size=min(batch_size, len(x)), chain=self.chain_ids,
                        seed=self.seed, device=self.device,
                    )  # fmt: skip
                state = warm_up.descend(
                    self._dynamics, state, stream, engine.num_data, mode=choose_mode(self.compile)
                )
        self._notice(engine.stream)
        config = self.describe() | {
            "steps": steps,
            "batch_size": batch_size,
            "burn_in": burn_in,
            "thin": thin,
            "store": "folder" if isinstance(where, Path) else where,
            "sample_dtype": str(dtype),
            "num_data": engine.num_data,
            "data": engine.stream.fingerprint(),
            "shared_batches": not engine.stream.chain_axis,
            "adapting": engine.rates.kind(steps - 1).adapts,
        }
        swaps = None
        if exchange is not None:
            swaps = ReplicaExchange(
                engine, self.mesh, self._temperature, self._prior,
                every=exchange, burn_in=burn_in, seed=self.seed,
            )  # fmt: skip
            engine.pauses.append(swaps)
            state, config["exchange"] = swaps.begin(state), swaps.describe()
        if self._owner.signature.several:
            config["inputs"] = self._owner.signature.several
        if until is not None:
            config["until"] = until
            pooled = pooled_chains(config, range(self.chains))
            if len({config["alike"][c] for c in pooled}) > 1:
                raise ValueError(
                    f"until={until!r} needs chains of one posterior, and these differ in "
                    "temperature or prior: give steps="
                )
        if chosen is not None:
            key = "recipe" if isinstance(chosen, recipe.Choice) else "pilot"
            config |= {"step_size": stable_repr(step_size), key: chosen.as_dict()}
        identity = config
        if checkpoint is not None or isinstance(where, Path) or self.mesh.world > 1:
            identity = config | exact_settings(
                self._template,
                self._rates_table(0, steps, step_size, burn_in=burn_in).values,
                self._prior,
                "compiled" if engine.mode == "compiled" else "eager",
            )
        made_by = provenance(
            self._template, likelihood=self.likelihood, preconditioner=self.preconditioner,
            **{f"prior of {name}": p for name, p in self._prior.items()},
        )  # fmt: skip
        where = check_same_everywhere(self.mesh, identity, made_by, engine.stream, where)
        sink = stores.open_store(where, specs, device=self.device, run=identity)
        collector = SampleCollector(
            state, store=sink, dtype=dtype, looks=plan.looks, first=int(self.chain_ids[0])
        )
        target = Target(
            wanted, lambda now: self._posterior_of(self, collector.so_far, now, config),
            engine.stream.example()[0], seconds=seconds if wanted is not None else None,
        )  # fmt: skip
        watcher = Watching(engine, self.mesh, target, steps=steps, callback=callback)
        title = progress if isinstance(progress, str) else "sampling"
        with contextlib.ExitStack() as closing:
            closing.callback(sink.close)
            saved = open_checkpoint(checkpoint, identity, engine.stream, self.mesh, made_by)
            if saved is not None:
                closing.callback(saved.close)
            with self.mesh.together("the run"):
                state = run(
                    plan, engine, state, collector,
                    saved=saved, title=title, progress=bool(progress), processes=self.mesh,
                    watcher=watcher,
                )  # fmt: skip
            by_clock = seconds is not None and wanted is None
            config["limit"] = "seconds" if by_clock else target.reached
            config["steps"] = int(state.step)
            if wanted is not None:
                config["ess"] = target.ess
            target.say(config["steps"], steps, seconds)
            config["execution"] = engine.way
            if swaps is not None:
                config["exchange"] = swaps.report(state)
            # Of all chains, as far as the run went.
            table = self._rates_table(0, config["steps"], step_size, burn_in=burn_in)
            weights = draw_weights(table.step_size, burn_in, thin, explores)
            if weights is not None:
                config["draw_weights"] = weights
            for name, values in self.dynamics.report(state).items():
                config[name] = self.mesh.all_rows(values).tolist()
            if (shift := rounding.autocast_shift(engine, state)) is not None:
                config["autocast_shift"] = shift
            config["effective_temperature"] = temperature_probe.after_run(
                engine, state, config["steps"], self.mesh
            )
            return self._posterior_of(self._owner, collector.finish, state, config)

    def _posterior_of(
        self,
        owner: Langevin,
        collected: Callable[..., Posterior],
        state: State,
        config: dict[str, Any],
    ) -> Posterior:
        """The posterior of all chains, from what was collected here, of the owner's network."""
        posterior = collected(
            state, model=owner._template, likelihood=self.likelihood, config=config
        )
        posterior.prior = self._dynamics.prior
        posterior.signature.adopt(owner.signature)
        if isinstance(self.mesh, ProcessMesh):
            return shard_posterior(posterior, self.mesh)
        return posterior

    def _notice(self, stream: Stream) -> None:
        """Says once what is most likely a mistake."""
        if self._noticed:
            return
        self._noticed = True
        x, y = (stream.x, stream.y) if isinstance(stream, InMemory) else stream.example()
        outputs = outputs_of_few(self._dynamics.gradients.network, self.init().params, x)
        fitted = self._by_recipe and self._start == "model"
        notices.notice(self.model, self.likelihood, self.signature, (x, y), outputs, fitted=fitted)

    def _set_prior(self, prior: priors.PriorLike) -> None:
        trainable = self._dynamics.gradients.network.trainable()
        self._prior = priors.resolve(prior, trainable, self.chains, device=self.device)
        own = priors.of_chains(self._prior, self.chain_ids)
        self._dynamics = dataclasses.replace(self._dynamics, prior=own)

    def _set_friction(self, friction: float) -> None:
        """Of the recipe's dynamics."""
        self.dynamics = dataclasses.replace(recipe.dynamics(), friction=friction)
        self._dynamics = dataclasses.replace(self._dynamics, integrator=self.dynamics)

    def _chosen(
        self, data: Any, steps: int, batch_size: int, checkpoint: str | os.PathLike[str] | None
    ) -> step_size_search.Choice:
        """The pilot's choice; a run to go on with keeps the one that it was started with."""
        found = step_size_search.Choice.from_config(
            resumed_config(checkpoint, self.mesh), self.chains
        )
        return found or self.choose_step_size(data, steps, batch_size=batch_size)

    @exclusive
    @eager
    def choose_step_size(
        self, data: Any, steps: int, *, batch_size: int = 100, splits: int | None = None
    ) -> step_size_search.Choice:
        """What ``step_size="auto"`` means for a run of ``steps`` steps (see ``pilot``).

        ``splits``: how many folds are held out in turn; scores are averaged. None: enough."""
        step_size_search.refuse_loader(data)
        data = self._in_tensors(data)
        self.prepare(data, steps=1, batch_size=batch_size, step_size=0.0)  # for its checks
        setup = step_size_search.Setup(
            # With several processes, each runs the pilot of all chains: the same choice everywhere.
            dataclasses.replace(self._dynamics, prior=self._prior, temperature=self._temperature),
            start=self._start_of,
            # Candidates are scored by the second half of the pilot: the first is their burn-in.
            rates=lambda etas, count: self._rates_table(
                0, count, etas, len(etas), burn_in=count // 2
            ),
            num_data=self.num_data,
            seed=self.seed,
            compile=self.compile,
        )
        return step_size_search.choose(
            setup, data, steps=steps, batch_size=batch_size, splits=splits
        )

    def _in_tensors(self, data: Any) -> Any:
        """Data in memory as (x, y); those that come in batches as they are."""
        if isinstance(data, ORDERED):
            return data
        return self.signature.split(data.tensors if isinstance(data, TensorDataset) else data)

    def _settle(self, data: Any, batch_size: int | None) -> tuple[StepSize | None, int]:
        """Step size (None: the sampler's own) and batch size where a caller names neither: those
        of the last run; before the first one, what the recipe chooses for ``data``."""
        if self._by_recipe and self._settled is None:
            size, choice, _ = planning.plan(
                self, data, batch_size, None, steps=None, burn_in=None, thin=None, seconds=None
            )
            self._settled = (choice.schedule_of(0), size)
        if self._settled is None:
            return None, usual_batch(data) if batch_size is None else batch_size
        return self._settled[0], self._settled[1] if batch_size is None else batch_size

    @exclusive
    @eager
    def effective_temperature(
        self, data: Any, *, posterior: Posterior | None = None, steps: int = 50,
        batch_size: int | None = None,
    ) -> Kinetic:  # fmt: skip
        """Whether the noise of a step fits its drift (see ``diagnostics.kinetic``): 1 is right.

        ``steps`` steps are taken on ``data`` from where ``posterior`` ended, or from the start,
        with the step size and the batch size of the sampler's last run where they were chosen.
        ``sample`` takes a few at the end of a run too, for ``posterior.diagnose``.
        """
        engine, state = self.prepare(data, steps=steps, batch_size=batch_size)
        if posterior is not None:
            here = {k: posterior.shards.here(v) for k, v in posterior.learned.items()}
            state = state._replace(params=posterior.last, likelihood=here or state.likelihood)
        found = temperature_probe.summary(
            state, temperature_probe.measure(engine, state, steps), self.mesh
        )
        if found is None:
            raise DivergenceError("no chain is running: there is no step to measure")
        return found

    @exclusive
    @eager
    def prepare(
        self,
        data: Any,
        *,
        steps: int,
        batch_size: int | None = None,
        step_size: StepSize | None = None,
        burn_in: int = 0,
    ) -> tuple[Engine, State]:
        """Everything ``sample`` does before its first step: an engine on this data, and a state.

        Where the sampler's step size is "auto" and none is given, it is the one that its last run
        chose, or is chosen now; the batch size likewise, otherwise 100 or all. The metric stands
        still from step ``burn_in`` on with ``adapt="burn-in"``; without burn-in it never does."""
        data = self._in_tensors(data)
        if step_size is None:
            step_size, batch_size = self._settle(data, batch_size)
        batch_size = usual_batch(data) if batch_size is None else batch_size
        steps, batch_size = whole_number("steps", steps), whole_number("batch_size", batch_size)
        dynamics, state = self._dynamics, self.init()
        if isinstance(data, Subsets) and len(data.rows) != self.chains:
            raise ValueError(
                f"rows must have a line for every chain: {self.chains} chains, {len(data.rows)} "
                "lines"
            )
        stream = as_stream(
            data, batch_size=batch_size, chain=self.chain_ids, seed=self.seed,
            device=self.device, split=self.signature.split,
        )  # fmt: skip
        if not isinstance(stream, InMemory):
            refuse_anchors("a DataLoader", dynamics)
        num_data = self._number_of_data(stream)
        check_data(dynamics.gradients, state, *stream.example(), targets=stream.targets)
        if not isinstance(stream, InMemory):
            stream.check = batch_check(dynamics.gradients, state.params)
        rates = self._rates_table(0, steps, step_size, burn_in=burn_in)
        check_stages(self.dynamics, rates)
        kept = rates.sampled(min(burn_in, steps - 1))
        warn_if_saturated(kept)
        self.dynamics.check(
            dynamics, step_size=kept.max(0).values[self.chain_ids],
            batch_size=len(stream.example()[0]), num_data=num_data,
            adapts=rates.adapts_from(min(burn_in, steps - 1)),
        )  # fmt: skip
        warn_if_epochs(self.dynamics, stream)
        if isinstance(self.dynamics, Overdamped):
            warn_if_stiff(self.preconditioner, self._prior, float(kept.max()), num_data)
        mode, own = choose_mode(self.compile), rates.of_chains(self.chain_ids)
        return Engine(dynamics, stream, own, num_data, mode=mode), state

    def _number_of_data(self, stream: Stream) -> float:
        """N: the user's own, or what the data yield. Batches that do not stand for the data are
        refused, or, where the user has said what N is, warned of."""
        problem = stream.wrong or ("" if stream.num_data else stream.unknown)
        if self.num_data is None and problem:
            raise ValueError(
                f"{problem}: give Langevin(..., num_data=N) to sample with it all the same. "
                "N sets the weight of the prior and the size of the noise"
            )
        if self.num_data is not None and stream.wrong:
            log.warning("%s", stream.wrong)
        if isinstance(stream, Loader):
            stream.expected = stream.num_data if self.num_data is None else None
            if self.chains > 1:
                log.info(
                    "the DataLoader's batches are shared by all %d chains, whose draws are then "
                    "not independent", self.chains,
                )  # fmt: skip
        found = self.num_data or stream.num_data
        assert found is not None
        return found

    def log_density(self, weights: Mapping[str, Tensor], data: Any) -> Tensor:
        """The unnormalised log posterior of given weights, at temperature 1, in nats:

            ln alpha(theta) + (N / n) sum_n ln p(y_n | x_n, theta),

        n the rows of ``data``, N = n unless ``num_data`` says otherwise. ``weights``: {name:
        (*shape)} of all sampled parameters, for a number; with a leading axis, for one each. The
        prior is the first chain's. It can be differentiated."""
        x, y = (t.to(self.device) for t in self.signature.split(data))
        state = self.init()
        first = {k: v[0] for k, v in state.likelihood.items()}
        shapes = {k: p.shape[1:] for k, p in state.params.items()}
        return density.log_density(
            self._dynamics.gradients.network.call, self.likelihood, self._prior, shapes, weights,
            (x, y), learned=first, share=(self.num_data or len(x)) / len(x),
        )  # fmt: skip

    def describe(self) -> dict[str, Any]:
        """The configuration in words, for results and saved posteriors."""
        return {
            "preconditioner": stable_repr(self.preconditioner),
            **({} if self.dynamics == Overdamped() else {"dynamics": stable_repr(self.dynamics)}),
            "prior": {name: stable_repr(p) for name, p in self._prior.items()},
            "likelihood": stable_repr(self.likelihood),
            "step_size": stable_repr(self.step_size),
            "mean_rate": stable_repr(self.mean_rate),
            "temperature": self._temperature.tolist(),
            "alike": step_size_search.like_chains(self._temperature, self._prior),
            "chains": self.chains,
            "init": self._start,
            "seed": self.seed,
        } | self._training

    def _rates_table(
        self,
        start: int,
        stop: int,
        step_size: StepSize | None = None,
        chains: int | None = None,
        burn_in: int = 0,
    ) -> RatesTable:
        """eta of all chains, gamma and mu. ``burn_in=0``: there is no burn-in to adapt in, and a
        metric that never saw a batch would be none: it goes on adapting."""
        trainable = next(p for p in self.model.parameters() if p.requires_grad)
        return RatesTable.build(
            known_step_size(self.step_size) if step_size is None else step_size,
            self.preconditioner.ema_schedule(burn_in or math.inf),
            self.mean_rate,
            start=start,
            stop=stop,
            chains=chains or self.chains,
            tuned=burn_in if self.dynamics.tunes else 0,
            refresh_steps=self.preconditioner.refresh_steps,
            dtype=trainable.dtype,
            device=self.device,
        )
