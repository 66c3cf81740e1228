"""``Langevin``: the sampler a user holds. Checks arguments, runs the engine, keeps samples."""

from __future__ import annotations

import copy
import logging
import os
from collections.abc import Iterable, Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from natural_langevin import likelihoods, preconditioners, priors, schedules
from natural_langevin._internal import gpu_build, threads
from natural_langevin._internal.one_at_a_time import OneAtATime, exclusive
from natural_langevin.data.signature import Signature
from natural_langevin.diagnostics import Kinetic
from natural_langevin.distributed import run_description, sampler_run
from natural_langevin.distributed.layout import Layout
from natural_langevin.distributed.process_mesh import ProcessMesh, find_processes
from natural_langevin.dynamics.base import Info, Integrator, State
from natural_langevin.dynamics.frame import LangevinDynamics
from natural_langevin.execution.engine import Engine, choose_mode
from natural_langevin.posterior.posterior import Posterior
from natural_langevin.sampling import (
    assembly,
    cost,
    density,
    frozen_front,
    open_settings,
    preparation,
    standard_units,
    starts,
    step_size_search,
    temperature_probe,
    time_limit,
    trained,
    validation,
)
from natural_langevin.sampling.footprint import check_step_memory
from natural_langevin.sampling.look import Callback
from natural_langevin.sampling.preparation import in_tensors
from natural_langevin.sampling.step_size_checks import StepSize
from natural_langevin.sampling.validation import data_in_one
from natural_langevin.statistics import Network, check_hooks, plain_copy, prepare_model
from natural_langevin.types import Batch, Params

log = logging.getLogger("natural_langevin")


class Langevin:
    """Natural Langevin dynamics on a network's weights: Algorithm 1 is in ``dynamics.overdamped``.

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
        chains: int = 4,
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

        ``likelihood_power`` is beta in pi(theta) ~ [alpha(theta) prod_n p(y_n | x_n)^beta]^(1/T),
        a number above 0 or a tensor of one per chain: N data count as beta N. ``init``: "model",
        "fan_in", "prior", or weights to start at: a state dict {name: (*shape)} or {name: (chain,
        *shape)}, or a list of modules or state dicts, one per chain.

        ``microbatch``: every chain's minibatch in pieces of at most so many samples, for less
        memory and the same result. ``autocast``: torch.bfloat16 or torch.float16 for the forward
        pass. ``clip``: the largest norm of a chain's likelihood gradient; the chain then no longer
        samples the posterior where gradients are longer. ``control_variates``: minibatch gradients
        are corrected by those of all data at an anchor that moves every so many steps (SVRG, see
        ``dynamics.control_variates``). ``parallel``: under ``torchrun``, "auto"
        spreads the chains over the processes and shares their minibatches where there are more
        processes than chains; ``distributed.Layout(chains=2, data=4)`` says how; None: every
        process for itself. ``chains`` and values per chain are always those of all processes."""
        #: For a sampler of some layers alone (``sampling.frozen_front``).
        self._options = {
            k: v for k, v in locals().items() if k not in ("self", "model", "likelihood")
        }
        found = open_settings.settle(
            model, prior=prior, preconditioner=preconditioner, dynamics=dynamics,
            step_size=step_size, init=init,
        )  # fmt: skip
        self._auto, self._by_recipe = found.auto, found.by_recipe
        self._scale_open = found.scale_open
        self.likelihood, self.preconditioner = likelihood, found.preconditioner
        self.dynamics = found.dynamics
        self._start, given = starts.kind_and_weights(found.init, chains)
        self.step_size, self.mean_rate, self.compile = found.step_size, mean_rate, compile
        validation.check_arguments(
            model, likelihood, found.prior, self.preconditioner,
            self._start if given is None else "model", self.dynamics,
        )  # fmt: skip
        self.chains, self.num_data, self.seed = validation.check_counts(chains, num_data, seed)
        dtype = self._copy_model(model, device, parallel)
        self._training = validation.check_training(
            microbatch, autocast, clip, self.preconditioner, control_variates, self.dynamics,
            likelihood,
        )  # fmt: skip
        choose_mode(compile)
        # Wrong rates fail here rather than at the first step.
        assembly.rates_table(self, 0, 1, 0.0 if self._auto else None)

        self.chain_ids = torch.tensor(self.mesh.own, device=self.device)  # of the chains here
        self._template = copy.deepcopy(self.model)  # without hooks, for the networks handed out
        #: How the network is called, and which of its outputs counts.
        self.signature = Signature(
            self.model, discrete=likelihood.discrete, raw=likelihood.raw_outputs
        )
        network = Network(self.model, autocast=autocast, signature=self.signature)
        weights = network.trainable()
        self._prior = priors.resolve(found.prior, weights, self.chains, device=self.device)
        self._temperature = validation.check_temperature(temperature, self.chains).to(
            dtype=dtype, device=self.device
        )
        self._power = validation.check_power(likelihood_power, self.chains)
        if self._power is not None:
            self._power = self._power.to(dtype=dtype, device=self.device)
        self._given = starts.check_given(given, weights, self._template, self.chains)
        self._dynamics = assembly.dynamics(
            self, network, microbatch=microbatch, clip=clip, control_variates=control_variates
        )
        self._forget_runs()
        check_step_memory(self._dynamics, weights, len(self.chain_ids), self.device)
        self.init()  # a model too large for its metric, or an improper prior, fails here

    def _copy_model(self, model: nn.Module, device: Any, parallel: Any) -> torch.dtype:
        """A copy of the user's network, on its device, among the processes; its weights' dtype."""
        check_hooks(model, log)
        self.model = plain_copy(model)
        prepare_model(self.model, log)
        first = validation.check_parameters(self.model)[0]
        self.device = validation.device_of(device) if device is not None else first.device
        self.mesh = find_processes(parallel, chains=self.chains, device=self.device)
        if isinstance(self.mesh, ProcessMesh):
            self.device = self.mesh.device
        gpu_build.start(self.device)
        validation.to_device(self.model, self.device)
        return first.dtype

    def __repr__(self) -> str:
        weights = sum(p.numel() for p in self.model.parameters() if p.requires_grad)
        return (
            f"Langevin({self.chains} chains of {weights:,} weights of a "
            f"{type(self.model).__name__}, {type(self.likelihood).__name__})"
        )

    def _forget_runs(self) -> None:
        """Sets to nothing what a run, or its caller, leaves in the sampler for the next one."""
        self._step_checked, self._noticed = 0, False  # batch size of the last check, notices given
        self._downhill = False  # whether chains go downhill before their burn-in
        self._downhill_pattern: Tensor | None = None  # which of them go for all (see warm_up)
        #: Where chains begin in place of all that, and what their likelihoods have learned there.
        self._begin: tuple[Params, Params] | None = None
        #: What step_size="auto" turned out to be, and the batch size it was chosen for.
        self._settled: tuple[StepSize, int] | None = None
        self._owner = self  # whose network the posterior's is
        self._fingerprint: str | None = None  # of the owner's data, where it is another
        #: The sampler of the last run's data in standard units, where they are of unusual size.
        self._standard: standard_units.Standard | None = None
        self._in_standard_units = False  # whether this is such a sampler
        #: Rows (x, y) that choose the prior's scale in place of folds of the data.
        self.held_out: Batch | None = None
        self._busy = OneAtATime()

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
        of ``Langevin``; what is left open follows the recipe. What stands before the first layer
        that is sampled is evaluated once for every sample.

        >>> net = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 3))
        >>> sampler = Langevin.from_trained(net, likelihoods.Categorical(), chains=2)
        >>> list(sampler.init().params)
        ['2.weight', '2.bias']
        """
        options = {"init": "model"} | options
        sampler = cls(trained.chosen(model, parameters), likelihood, **options)
        if held_out is not None:
            sampler.held_out = sampler.signature.split(held_out)
        else:
            trained.set_scale(sampler)
        return sampler

    def init(self) -> State:
        """The state before the first update."""
        return self._start_of(self._dynamics, self.chain_ids)

    def _start_of(self, dynamics: LangevinDynamics, chain: Tensor) -> State:
        """The same for chains of these identities under these dynamics."""
        params = dynamics.gradients.network.trainable()
        start = starts.weights(
            self._start, params, dynamics.prior, chain, self.seed, given=self._given
        )
        return dynamics.init(start)

    @exclusive
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

        The first batch that a sampler sees here is checked like the data of ``sample``, and of
        every later one its shape, its numbers (finite) and its targets (in range)."""
        return preparation.single_step(self, state, batch, chain_axis=chain_axis, burn_in=burn_in)

    @data_in_one
    @exclusive
    @time_limit.of_call
    @threads.one_where(cost.is_small)
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
        kept. ``seconds`` in place of ``steps``: what the whole call may take, as far as possible;
        what is searched for is cut short where that is little (``sampling.time_limit``).
        ``until="ess:400"`` ends the run when the effective sample size of its predictions is 400;
        ``steps`` and ``seconds`` are then the most it may take (left open: ten times what the
        recipe would run). ``posterior.config["limit"]`` and the log say which was reached.

        ``callback`` is shown the run every 50 steps, of one that may end early oftener
        (``sampling.look.Look``: losses, temperature, acceptance);
        ``integrations.tensorboard.TensorBoard(folder)`` is one. Where a run of open length became
        burn-in for another, or began anew, both are shown, each from step 0 on.

        ``exchange=k``: before every k-th step chains of neighbouring ``temperature`` or
        ``likelihood_power`` propose to swap their weights (``sampling.exchange``), on data in
        memory. Predictions then use the chains at temperature 1 and power 1, and
        ``posterior.config["exchange"]`` has the swap rate of every pair.

        ``keep=M`` keeps at most M samples of every chain by doubling ``thin`` as often as needed
        (``posterior.config["thin"]`` says what was used). Samples are stored on the sampler's
        device, in the machine's memory (``store="cpu"``), or in a folder (``store="folder"``),
        where each is written as it is drawn, and read from there when it is needed;
        ``posterior.save`` of the same folder leaves them there. ``sample_dtype=torch.bfloat16``
        (or float16) halves what a float32 sample takes; predictions compute in the model's dtype.

        With ``checkpoint="folder"`` the run is written there every ``every`` steps (default: about
        once a minute, and when Ctrl-C or SIGTERM comes), and goes on from there when the folder
        holds a checkpoint of the same run. Folders of a run under way are locked. Without one,
        Ctrl-C ends the run with the draws that were kept so far (before the first, it raises).
        """
        arguments = {k: v for k, v in locals().items() if k not in ("self", "data")}
        if (found := standard_units.sampled(self, data, arguments)) is not None:
            return found
        if (found := frozen_front.sampled(self, data, arguments)) is None:
            found = sampler_run.sampled(self, data, **arguments)
        self._standard = None  # of a run before
        return found

    @data_in_one
    @exclusive
    def choose_step_size(
        self, data: Any, steps: int, *, batch_size: int = 100, splits: int | None = None
    ) -> step_size_search.Choice:
        """The step size that short runs choose for one of ``steps`` steps (``step_size_search``).

        ``splits``: how many folds are held out in turn; scores are averaged. None: enough."""
        step_size_search.refuse_loader(data)
        data = in_tensors(self, data)
        self.prepare(data, steps=1, batch_size=batch_size, step_size=0.0)  # for its checks
        return step_size_search.choose(
            assembly.pilot_setup(self), data, steps=steps, batch_size=batch_size, splits=splits
        )

    @exclusive
    def effective_temperature(
        self, data: Any, *, posterior: Posterior | None = None, steps: int = 50,
        batch_size: int | None = None,
    ) -> Kinetic:  # fmt: skip
        """Whether the noise of a step fits its drift (see ``diagnostics.kinetic``): 1 is right.

        ``steps`` steps are taken on ``data`` from where ``posterior`` ended, or from the start,
        with the step size and the batch size of the sampler's last run where they were chosen.
        ``sample`` takes a few at the end of a run too, for ``posterior.diagnose``.
        """
        standard = standard_units.of_posterior(self, posterior)
        if standard is not None:
            return standard.effective_temperature(data, posterior, steps, batch_size)
        engine, state = self.prepare(data, steps=steps, batch_size=batch_size)
        if posterior is not None:
            state = temperature_probe.at_end_of(posterior, state)
        return temperature_probe.required(engine, state, steps, self.mesh)

    @exclusive
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
        data = in_tensors(self, data)
        if step_size is None:
            step_size, batch_size = preparation.settled(self, data, batch_size)
        return preparation.engine(
            self, data, steps=steps, batch_size=batch_size, step_size=step_size, burn_in=burn_in
        )

    def log_density(self, weights: Mapping[str, Tensor], data: Any) -> Tensor:
        """The unnormalised log posterior of given weights, at temperature 1, in nats:

            ln alpha(theta) + (beta N / n) sum_n ln p(y_n | x_n, theta),

        n the rows of ``data``, N = n unless ``num_data`` says otherwise, beta the power of the
        likelihood. ``weights``: {name: (*shape)} of all sampled parameters, for a number; with a
        leading axis, for one each. Prior and beta are the first chain's. It can be
        differentiated."""
        if self._standard is not None:
            return self._standard.log_density(weights, data)
        standard_units.refuse_unsettled(self, data)
        return density.of_sampler(self, weights, data)

    def describe(self) -> dict[str, Any]:
        """The configuration in words, for results and saved posteriors."""
        return run_description.settings(self)
