"""``Langevin``: the sampler a user holds. Checks arguments, runs the engine, keeps samples."""

from __future__ import annotations

import copy
import logging
import math
from typing import Any

import torch
from torch import Tensor, nn

from natural_langevin import likelihoods, models, preconditioners, priors, random, schedules
from natural_langevin.data.streams import InMemory, Stream, as_stream
from natural_langevin.engine import Engine, choose_mode
from natural_langevin.gradients import Gradients, Network, prepare_model
from natural_langevin.gradients.selfcheck import check_statistics
from natural_langevin.langevin import Dynamics, Info, Rates, State
from natural_langevin.posterior import Collector, Posterior
from natural_langevin.progress import Progress

log = logging.getLogger("natural_langevin")

#: Steps between two looks at the loss and at divergence, each of which waits for the device.
LOOK_EVERY = 50


class DivergenceError(RuntimeError):
    """Every chain became non-finite."""


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
        prior: priors.PriorLike = priors.Gaussian(variance=0.1),
        preconditioner: preconditioners.Preconditioner | None = None,
        step_size: float | Tensor | schedules.Schedule = schedules.halving(1e-3, every=10_000),
        temperature: float | Tensor = 1.0,
        chains: int = 4,
        num_data: int | None = None,
        init: str = "model",
        mean_rate: float | schedules.Schedule = schedules.inverse_sqrt(),
        seed: int = 0,
        device: torch.device | str | None = None,
        compile: bool | str = "auto",
    ) -> None:
        """``mean_rate`` is mu_t of the running mean; the other arguments are in the README."""
        _check_arguments(model, likelihood, chains, num_data, init, seed)
        self.model = copy.deepcopy(model)  # the user's own is never touched
        prepare_model(self.model, log)
        trainable = _check_parameters(self.model)
        self.device = torch.device(device) if device is not None else trainable[0].device
        self.model.to(self.device)
        self.likelihood = likelihood
        self.preconditioner = preconditioner or preconditioners.QuasiDiagonalFisher()
        self.chains, self.num_data, self.seed, self.compile = chains, num_data, seed, compile
        self.step_size, self.mean_rate = step_size, mean_rate
        choose_mode(compile, 0.0)
        self._rates_table(0, 1)  # wrong rates fail here rather than at the first step

        self.chain_ids = torch.arange(chains, device=self.device)
        network = Network(self.model)
        names = list(network.trainable())
        self._dynamics = Dynamics(
            gradients=Gradients(
                network,
                likelihood,
                need=self.preconditioner.need,
                targets=self.preconditioner.targets,
            ),
            preconditioner=self.preconditioner,
            prior=priors.resolve(prior, names, chains, device=self.device),
            temperature=_temperature(temperature, chains, trainable[0].dtype, self.device),
            noise=random.origin(seed, random.NOISE, self.chain_ids),
            labels=random.origin(seed, random.LABELS, self.chain_ids),
        )
        self._start = init
        self.init()  # a model too large for its metric, or an improper prior, fails here

    def init(self) -> State:
        """The state before the first update."""
        params = self._dynamics.gradients.network.trainable()
        chain = self.chain_ids
        if self._start == "fan_in":
            start = models.fan_in_init(params, chain=chain, seed=self.seed)
        elif self._start == "prior":
            start = {}
            for index, (name, p) in enumerate(params.items()):
                key = random.stream(random.origin(self.seed, random.INIT, chain), index)
                start[name] = self._dynamics.prior[name].sample(key, tuple(p.shape), p.dtype)
        else:
            start = {k: p.expand(self.chains, *p.shape).clone() for k, p in params.items()}
        return self._dynamics.init(start)

    def step(
        self, state: State, batch: tuple[Tensor, Tensor], *, chain_axis: bool = False
    ) -> tuple[State, Info]:
        """One update. The batch is shared by all chains unless ``chain_axis``: (chain, B, ...)."""
        if self.num_data is None:
            raise ValueError(
                "step() cannot see how many data there are: give Langevin(..., num_data=N). "
                "N sets the weight of the prior and the size of the noise"
            )
        x, y = (t.to(self.device) for t in batch)
        row = self._rates_table(int(state.step), int(state.step) + 1)[0]
        self._dynamics.gradients.prepare(state.params, x[0] if chain_axis else x)
        rates = Rates(row[:-2], row[-2], row[-1])
        return self._dynamics.step(state, (x, y), rates, self.num_data, chain_axis=chain_axis)

    def sample(
        self,
        data: Any,
        steps: int,
        *,
        batch_size: int = 100,
        burn_in: int = 0,
        thin: int = 1,
        checkpoint: str | None = None,
        progress: bool = True,
    ) -> Posterior:
        """Runs ``steps`` updates and keeps every ``thin``-th iterate after the first ``burn_in``.

        Iterate k is the parameter after k updates; k = burn_in + thin, burn_in + 2 thin, ... are
        kept, (steps - burn_in) // thin in all. ``data``: (x, y) tensors, y alone (unsupervised), a
        TensorDataset, or a DataLoader (whose batches are shared by all chains, and whose own
        batch size counts).
        """
        kept = _check_run(steps, burn_in, thin)
        if checkpoint is not None:
            raise NotImplementedError("checkpoint= is not available yet")
        engine, state = self.prepare(data, steps=steps, batch_size=batch_size)
        collector = Collector(state, draws=kept)
        with Progress(repr(self.preconditioner).split("(")[0], steps, shown=progress) as bar:
            done = 0
            while done < steps:
                next_kept = burn_in + thin * (max(0, done - burn_in) // thin + 1)
                next_look = LOOK_EVERY * (done // LOOK_EVERY + 1)
                count = min(next_kept, next_look, steps) - done
                state, info = engine.run(state, done, count)
                done += count
                if done > burn_in and (done - burn_in) % thin == 0:
                    collector.keep(state)
                if done % LOOK_EVERY == 0 or done == steps:
                    collector.look(done, info)
                    bar.update(done, f"loss {_mean_loss(info):.4f}  {collector.kept} kept")
                    _check_divergence(state)
        return collector.finish(
            state, model=self.model, likelihood=self.likelihood, config=self.describe() | {
                "steps": steps, "batch_size": batch_size, "burn_in": burn_in, "thin": thin,
                "num_data": engine.num_data,
            },
        )  # fmt: skip

    def prepare(self, data: Any, *, steps: int, batch_size: int = 100) -> tuple[Engine, State]:
        """Everything ``sample`` does before its first step: an engine on this data, and a state."""
        dynamics, state = self._dynamics, self.init()
        stream = as_stream(
            data, batch_size=batch_size, chain=self.chain_ids, seed=self.seed, device=self.device
        )
        num_data = self.num_data or stream.num_data
        if num_data is None:
            raise ValueError(
                "this DataLoader's dataset has no length: give Langevin(..., num_data=N). "
                "N sets the weight of the prior and the size of the noise"
            )
        self._check_data(stream, state)
        rates = self._rates_table(0, steps)
        self._warn_if_stiff(float(rates[:, :-2].max()), num_data)
        per_step = 6.0 * self.chains * batch_size * sum(p[0].numel() for p in state.params.values())
        mode = choose_mode(self.compile, per_step * steps)
        return Engine(dynamics, stream, rates, num_data, mode=mode), state

    def describe(self) -> dict[str, Any]:
        """The configuration in words, for results and saved posteriors."""
        return {
            "preconditioner": repr(self.preconditioner),
            "prior": {name: repr(p) for name, p in self._dynamics.prior.items()},
            "likelihood": repr(self.likelihood),
            "step_size": repr(self.step_size),
            "temperature": self._dynamics.temperature.tolist(),
            "chains": self.chains,
            "init": self._start,
            "seed": self.seed,
        }

    def _rates_table(self, start: int, stop: int) -> Tensor:
        """A row per step: eta of every chain, gamma, mu."""
        columns = [
            schedules.tabulate(self.step_size, start, stop, name="step_size", chains=self.chains),
            schedules.tabulate(
                self.preconditioner.decay, start, stop, name="decay", chains=1, high=1.0
            ),
            schedules.tabulate(self.mean_rate, start, stop, name="mean_rate", chains=1, high=1.0),
        ]
        dtype = next(p.dtype for p in self.model.parameters() if p.requires_grad)
        return torch.cat(columns, dim=1).to(dtype=dtype, device=self.device)

    def _warn_if_stiff(self, step_size: float, num_data: float) -> None:
        """Where the metric vanishes, the prior's own pull is a linear map of rate eta / damping.

        Above 2 it overshoots ever further, whatever the data say: a chain will diverge."""
        damping = getattr(self.preconditioner, "damping", None)
        variances = [
            float(torch.as_tensor(p.variance).min())
            for p in self._dynamics.prior.values()
            if isinstance(p, priors.Gaussian)
        ]
        if self.preconditioner.need == "gradient" or not damping or not variances:
            return
        pull = step_size / (damping * num_data * min(variances))
        if pull > 1:
            log.warning(
                "step_size / (damping N variance) = %.2g is above 1: with %d data the prior alone "
                "can make a chain diverge. Use a damping of at least %.1g or a smaller step size",
                pull,
                num_data,
                damping * pull,
            )

    def _check_data(self, stream: Stream, state: State) -> None:
        """Data that do not fit the network or the likelihood fail before the first step."""
        x, y = stream.example()
        dtype = next(iter(state.params.values())).dtype
        if x.is_floating_point() and x.dtype != dtype:
            raise TypeError(f"x is {x.dtype} but the model is {dtype}: convert one of them")
        first = {name: p[0] for name, p in state.params.items()}
        few = x[: min(len(x), 4)]
        try:
            with torch.no_grad():
                outputs = self._dynamics.gradients.network.call(first, few)
        except RuntimeError as error:
            raise ValueError(
                f"the model cannot take x of shape {tuple(x.shape)}: {error}"
            ) from error
        self.likelihood.check(outputs, stream.targets)
        gradients = self._dynamics.gradients
        if gradients.targets == "model":
            key = torch.zeros(2, dtype=torch.int32, device=self.device)
            learned = {k: v[0] for k, v in state.likelihood.items()}
            self.likelihood.sample(outputs, key, learned)  # a LogLoss without sample= fails here
        check_statistics(gradients, state.params, state.likelihood, x, y)
        gradients.prepare(state.params, x)
        if not isinstance(stream, InMemory):
            _log_shared_batches(self.chains)


def _check_arguments(
    model: Any, likelihood: Any, chains: int, num_data: int | None, init: str, seed: int
) -> None:
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, got {type(model).__name__}")
    if not isinstance(likelihood, likelihoods.Likelihood):
        raise TypeError(
            f"likelihood must be one of natural_langevin.likelihoods, got {likelihood!r}: "
            "wrap a per-sample log-loss as likelihoods.LogLoss(fn)"
        )
    if not isinstance(chains, int) or chains < 1:
        raise ValueError(f"chains must be a positive integer, got {chains!r}")
    if num_data is not None and not num_data > 0:
        raise ValueError(f"num_data must be positive, got {num_data!r}")
    if init not in ("model", "fan_in", "prior"):
        raise ValueError(f'init must be "model", "fan_in" or "prior", got {init!r}')
    if not isinstance(seed, int) or not 0 <= seed < 1 << 63:
        raise ValueError(f"seed must be an integer from 0 to 2^63 - 1, got {seed!r}")


def _check_parameters(model: nn.Module) -> list[nn.Parameter]:
    trainable = [p for p in model.parameters() if p.requires_grad]
    if not trainable:
        raise ValueError(
            "the model has no trainable parameters: set requires_grad_(True) on those to sample"
        )
    dtypes = {p.dtype for p in trainable}
    if len(dtypes) > 1 or not next(iter(dtypes)).is_floating_point:
        raise TypeError(f"trainable parameters must share one real floating dtype, got {dtypes}")
    for name, p in model.named_parameters():
        if not torch.isfinite(p).all():
            raise ValueError(f"parameter {name!r} holds NaN or infinite values: re-initialise it")
    return trainable


def _temperature(
    value: float | Tensor, chains: int, dtype: torch.dtype, device: torch.device
) -> Tensor:
    table = schedules.tabulate(value, 0, 1, name="temperature", chains=chains)
    return table[0].to(dtype=dtype, device=device)


def _check_run(steps: int, burn_in: int, thin: int) -> int:
    if burn_in < 0 or thin < 1:
        raise ValueError(f"burn_in must be >= 0 and thin >= 1, got {burn_in} and {thin}")
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


def _check_divergence(state: State) -> None:
    """One warning per newly stopped chain is the collector's; here, the case where none is left."""
    if bool((state.diverged >= 0).all()):
        steps = state.diverged.tolist()
        raise DivergenceError(
            f"all {len(steps)} chains became non-finite (at steps {steps}). The step size is most "
            "likely too large: try a tenth of it; with a Fisher preconditioner, more damping or a "
            'prior of smaller variance also help, and targets="data" is more robust than "model"'
        )


def _mean_loss(info: Info) -> float:
    losses = info.loss[~info.diverged]
    return float(losses.mean()) if len(losses) else math.nan


def _log_shared_batches(chains: int) -> None:
    if chains > 1:
        log.info("a DataLoader's batches are shared by all %d chains", chains)
