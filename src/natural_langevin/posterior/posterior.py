"""Posterior: the kept samples of every chain, their running mean, and predictions from them."""

from __future__ import annotations

import copy
import logging
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.func import vmap

from natural_langevin import diagnostics
from natural_langevin._internal.processes import SingleProcess
from natural_langevin.data.streams import split_pair
from natural_langevin.likelihoods import Likelihood
from natural_langevin.metrics.summary import (
    ClassificationScores,
    RegressionScores,
    interval_levels,
)
from natural_langevin.posterior import distillation, export, networks, storage
from natural_langevin.posterior.chain_shards import ChainShards
from natural_langevin.posterior.evaluation import score
from natural_langevin.posterior.prediction import (
    Averager,
    Prediction,
    check_levels,
    input_batches,
    join,
    one_tensor,
)
from natural_langevin.priors import Prior, PriorLike, resolve
from natural_langevin.statistics import plain_copy, prepare_model, vectorised, with_parameters
from natural_langevin.statistics.capture import Places
from natural_langevin.statistics.vectorised import MODEL_LOCK
from natural_langevin.types import Params

log = logging.getLogger("natural_langevin")

Estimate = Literal["ensemble", "mean", "last"]


class Posterior:
    """``samples[name]`` is (chain, draw, *shape); ``mean`` and ``last`` are (chain, *shape).

    A chain that diverged keeps the samples drawn before; the missing ones are NaN. Predictions and
    the pooled mean leave it out.
    """

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
        self.shards = ChainShards(SingleProcess(len(diverged)))  # which chains are here
        self._model, self._places = model, Places(model)

    @property
    def chains(self) -> int:
        return len(self.diverged)

    @property
    def draws(self) -> int:
        return next(iter(self.samples.values())).shape[1]

    @property
    def healthy(self) -> list[int]:
        """The chains that never diverged."""
        return (self.diverged < 0).nonzero().flatten().tolist()

    @property
    def sigma(self) -> Tensor | None:
        """A regression's noise level at the end of the run, one value per chain."""
        variance = self.likelihood.noise_variance(self.learned)
        return None if variance is None else variance.sqrt().expand(self.chains)

    def network(self, chain: int, draw: int) -> nn.Module:
        """The network of one sample, as a plain nn.Module."""
        params = self._row_of({name: s[:, draw] for name, s in self.samples.items()}, chain)
        if not all(torch.isfinite(p).all() for p in params.values()):
            raise ValueError(
                f"chain {chain} diverged at step {int(self.diverged[chain])}, before draw {draw}"
            )
        return self._as_module(params)

    def mean_network(self, chain: int | None = None) -> nn.Module:
        """The network at the running mean of one chain, or at the average over healthy chains."""
        if chain is not None:
            return self._as_module(self._row_of(self.mean, chain))
        mean = {k: self.shards.mean(m, self.healthy) for k, m in self.mean.items()}
        return self._as_module(mean)

    def _row_of(self, values: Params, chain: int) -> Params:
        """One chain's part of ``mean`` or ``last``."""
        return self.shards.one(chain, lambda row: {k: v[row] for k, v in values.items()})

    def predict(
        self,
        x: Tensor | Iterable[Any],
        *,
        estimate: Estimate = "ensemble",
        batch_size: int = 1000,
        sample_batch: int = 16,
        keep_samples: bool = True,
        quantiles: Iterable[float] | None = None,
    ) -> Prediction:
        """Averages *probabilities* (or means) over networks: never log-probabilities.

        ``x``: a tensor, or an iterable of batches such as a DataLoader (of x, or of (x, y)).
        ``estimate``: "ensemble" of all kept samples; "mean", the networks at each chain's running
        mean; "last", at each chain's last iterate. At most ``sample_batch`` networks times
        ``batch_size`` inputs are evaluated at once. ``quantiles=(0.05, 0.95)`` asks for these
        levels too (see ``Prediction``). Large x: ``keep_samples=False`` keeps the averages alone.
        """
        levels = check_levels(quantiles)
        samples, noise = self._networks(estimate), self._noise_of(estimate)
        count = len(self.healthy) * next(iter(samples.values())).shape[1]
        device = next(iter(self.last.values())).device
        parts = []
        for batch in input_batches(x, batch_size):
            averager = Averager(
                self.likelihood, count, noise, keep_samples=keep_samples, levels=levels
            )
            self._fill(averager, samples, batch.to(device), sample_batch)
            parts.append(averager.finish())
        if not parts:
            raise ValueError("there is nothing to predict: x holds no batch")
        return join(parts)

    def evaluate(
        self,
        x: Tensor,
        y: Tensor,
        *,
        ood: Tensor | None = None,
        estimate: Estimate = "ensemble",
        batch_size: int = 1000,
        sample_batch: int = 16,
    ) -> ClassificationScores | RegressionScores:
        """Scores on labelled data; ``print`` them. Needs torchmetrics (the extra ``metrics``).

        ``ood``: inputs of another kind; how well epistemic uncertainty tells them from ``x`` is
        scored too. Binary targets, and the positions of a sequence, count as samples each.
        """
        options: dict[str, Any] = {"estimate": estimate, "batch_size": batch_size}
        options["sample_batch"] = sample_batch
        levels = () if self.likelihood.discrete else interval_levels()
        prediction = self.predict(
            x, keep_samples=not self.likelihood.discrete, quantiles=levels, **options
        )
        other = None if ood is None else self.predict(ood, keep_samples=False, **options).epistemic
        return score(
            prediction, y.to(prediction.mean.device), self.likelihood,
            noise=self._noise_of(estimate), outside=other,
        )  # fmt: skip

    def distill(
        self,
        x: Tensor,
        *,
        model: nn.Module | None = None,
        steps: int = 2000,
        batch_size: int = 100,
        learning_rate: float = 1e-3,
        seed: int = 0,
    ) -> nn.Module:
        """One network that predicts like the whole ensemble, taught on inputs ``x`` (no labels).

        ``model`` is the student to train (a copy is); by default the network itself, starting from
        a chain's last iterate. A regression's student with twice the outputs learns the log of the
        total variance too (see ``distillation``). It is returned frozen, in eval mode.
        """
        first = self.healthy[0] if self.healthy else 0
        own = self._as_module(self._row_of(self.last, first)) if model is None else model
        student = copy.deepcopy(own)
        x = x.to(next(iter(self.last.values())).device)
        prediction = self.predict(x, keep_samples=False)
        return distillation.train(
            student.to(x.device), x, distillation.divergence(prediction, self.likelihood),
            steps=steps, batch_size=batch_size, learning_rate=learning_rate, seed=seed,
        )  # fmt: skip

    def export(
        self,
        path: str | os.PathLike[str],
        example: Tensor,
        *,
        format: export.Format = "torch",
        estimate: Estimate = "ensemble",
    ) -> None:
        """Writes the predictor as one file for serving: ``torch.export`` (.pt2) or ONNX.

        It maps inputs like ``example``, any number of them, to (mean, total, epistemic) as
        ``predict(x, estimate=estimate)`` does. ONNX needs the extra ``export``.
        """
        self.shards.check_whole("export")
        every, noise = self._stacked(estimate), self._noise_of(estimate)
        with MODEL_LOCK:
            served = export.Served(self._model, self.likelihood, every, noise)
            export.write(served, path, example.to(next(iter(every.values())).device), format)

    def _networks(self, estimate: Estimate) -> Params:
        """Parameters of the networks to average, (chain, draw, *shape); nothing is copied."""
        if estimate not in ("ensemble", "mean", "last"):
            raise ValueError(f'estimate must be "ensemble", "mean" or "last", got {estimate!r}')
        if not self.healthy:
            raise ValueError("every chain diverged: there is nothing to predict with")
        if estimate == "ensemble":
            return self.samples
        source = self.mean if estimate == "mean" else self.last
        return {name: value.unsqueeze(1) for name, value in source.items()}

    def _stacked(self, estimate: Estimate) -> Params:
        """The same as one stack in memory, (network, *shape)."""
        samples = self._networks(estimate)
        count = len(self.healthy) * next(iter(samples.values())).shape[1]
        return next(networks.chunks(samples, self.healthy, count, like=self.last))

    def _noise_of(self, estimate: Estimate) -> Tensor | None:
        """Every network's observation variance, (network,), where the likelihood knows it."""
        variance = self.likelihood.noise_variance(self.learned)
        if variance is None:
            return None
        by_chain = variance.expand(self.chains)[self.healthy]
        return by_chain.repeat_interleave(self.draws) if estimate == "ensemble" else by_chain

    def _fill(self, averager: Averager, samples: Params, x: Tensor, sample_batch: int) -> None:
        """Adds the predictions of all networks, ``sample_batch`` at a time."""
        rows = self.shards.rows(self.healthy)
        with torch.no_grad():
            for some in networks.chunks(samples, rows, sample_batch, like=self.last):
                averager.add(self._outputs(some, x))
            one = {name: value[:1] for name, value in self.last.items()}
            self.shards.pool(averager, lambda: self._outputs(one, x)[:0])

    def _outputs(self, params: Params, x: Tensor) -> Tensor:
        """Predictions of several networks: (network, B, ...)."""
        return vmap(lambda p: self.likelihood.predictive(one_tensor(self._call(p, x))))(params)

    def diagnose(
        self,
        x: Tensor,
        *,
        data: tuple[Tensor, Tensor] | None = None,
        prior: PriorLike | None = None,
        parameters: Iterable[str] = (),
        batch_size: int = 1000,
        max_draws: int = 100,
    ) -> diagnostics.Diagnosis:
        """Has the chain converged, does it explore, is its noise right? ``print`` the answer.

        R-hat and effective sample size of the predictions on probe inputs ``x`` (a few dozen are
        enough), of the ``parameters`` whose names match the given patterns (up to 50 components
        of each), distances between chains, divergences, and the effective temperature that the
        run measured. With the training ``data`` (x, y), also the temperature of the samples, on
        ``batch_size`` random data for each of at most ``max_draws`` draws; a loaded posterior
        needs the ``prior`` again for it. Needs ArviZ (the extra ``diagnostics``).
        """
        predictions = self.predict(x).samples
        assert predictions is not None
        stopped = {c: int(s) for c, s in enumerate(self.diverged.tolist()) if s >= 0}
        warm = [t for t in self._temperatures().tolist() if t > 0]
        measured = self.config.get("effective_temperature")
        chosen = diagnostics.some_components(self.samples, tuple(parameters))
        return diagnostics.diagnose(
            predictions.unflatten(0, (len(self.healthy), self.draws)),
            stopped,
            healthy=self.healthy,
            thin=self.config.get("thin"),
            parameters={k: self.shards.everywhere(v)[self.healthy] for k, v in chosen.items()},
            kinetic=None if measured is None else diagnostics.Kinetic.from_dict(measured),
            configurational=None
            if data is None
            else self._configurational(data, prior, batch_size, max_draws),
            temperature=min(warm, default=1.0),
        )

    def _temperatures(self) -> Tensor:
        """T of every chain, as far as the configuration says: (chain,)."""
        value = self.config.get("temperature", 1.0)
        return torch.as_tensor(value, dtype=torch.float64).expand(self.chains)

    def _configurational(
        self,
        data: tuple[Tensor, Tensor],
        prior: PriorLike | None,
        batch_size: int,
        max_draws: int,
    ) -> diagnostics.Configurational | None:
        known = (
            self.prior
            if prior is None
            else resolve(
                prior, list(self.samples), self.chains, device=next(iter(self.last.values())).device
            )
        )
        if known is None:
            raise ValueError(
                "the temperature of the samples needs the prior, which a saved posterior does not "
                "hold: diagnose(x, data=data, prior=priors.Gaussian(...))"
            )
        temperature = self._temperatures()
        warm = [c for c in self.healthy if temperature[c] > 0]
        if not warm:
            return None
        here = {name: self.shards.here(value) for name, value in self.learned.items()}
        like = next(iter(self.last.values()))
        x, y = (t.to(like.device) for t in split_pair(data))
        return diagnostics.configurational.measure(
            self._call, self.likelihood, known, self.samples, here, temperature,
            (x, y), like=like, chosen_chains=warm, of_all=self.shards.everywhere,
            batch_size=batch_size,
            num_data=float(self.config.get("num_data", len(x))), max_draws=max_draws,
        )  # fmt: skip

    def _call(self, params: Params, x: Tensor) -> Any:
        with vectorised(x):
            return self._places.call(params, (x,))

    def to_arviz(self, x: Tensor | None = None) -> Any:
        """The healthy chains' samples as an ArviZ ``InferenceData``: one variable per parameter
        tensor, and ``prediction`` for the inputs ``x`` when they are given."""
        self.shards.check_whole("to_arviz")
        variables = {k: s[self.healthy].to(self.last[k].dtype) for k, s in self.samples.items()}
        if x is not None:
            predictions = self.predict(x).samples
            assert predictions is not None
            shape = (len(self.healthy), self.draws)
            variables["prediction"] = predictions.unflatten(0, shape)
        return diagnostics.inference_data(variables)

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Writes the posterior to a folder as safetensors and JSON, never pickle.

        Saved are samples, running means, last iterates, the likelihood, the trace and the
        configuration. Not saved are the model's code, its frozen parameters and its buffers: of
        these a fingerprint is kept, and ``load`` refuses a model in which they differ. What the
        folder held before is replaced in one moment: a save that fails or is killed leaves it as
        it was. Samples that a run wrote to this folder itself (``store=folder``) stay where they
        are.
        """
        run = {"diverged": self.diverged.long(), "trace": self.trace.double()}
        self.shards.write(
            Path(folder),
            model=self._model,
            samples=self.samples,
            groups={"mean": self.mean, "last": self.last, "learned": self.learned, "run": run},
            likelihood=self.likelihood,
            config=self.config,
        )

    @staticmethod
    def load(
        folder: str | os.PathLike[str],
        model: nn.Module,
        *,
        likelihood: Likelihood | None = None,
        memory_map: bool = False,
    ) -> Posterior:
        """Reads a saved posterior of this model. Only a ``LogLoss`` must be given again.

        With ``memory_map=True`` the samples stay on the disk and are read when they are needed,
        also to predict with more of them than fit into memory; do not change the folder
        meanwhile. A file that is damaged, or is not of this model, is a ``StorageError``.
        """
        model = plain_copy(model)
        prepare_model(model, log)
        device = next(p.device for p in model.parameters() if p.requires_grad)
        samples, groups, found, config = storage.read(
            Path(folder), model, likelihood, memory_map=memory_map
        )
        moved = {g: {k: v.to(device) for k, v in values.items()} for g, values in groups.items()}
        return Posterior(
            model=model,
            likelihood=found,
            samples=samples if memory_map else {k: v.to(device) for k, v in samples.items()},
            mean=moved["mean"],
            last=moved["last"],
            diverged=moved["run"]["diverged"],
            learned=moved.get("learned", {}),
            trace=groups["run"]["trace"],
            config=config,
        )

    def _as_module(self, params: Params) -> nn.Module:
        with MODEL_LOCK:  # another thread may have parameters of its own in the model
            return with_parameters(self._model, params)
