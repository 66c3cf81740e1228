"""Posterior: predictions from the kept draws of every chain, their scores, and their files."""

from __future__ import annotations

import copy
import logging
import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.distributions import Distribution

from natural_langevin import diagnostics
from natural_langevin.likelihoods import Likelihood, weight_name
from natural_langevin.metrics.summary import ClassificationScores, RegressionScores
from natural_langevin.posterior import (
    arviz,
    diagnosis,
    distillation,
    evaluation,
    export,
    monte_carlo,
    storage,
)
from natural_langevin.posterior.calibration import check_number
from natural_langevin.posterior.draws import Chains, Draws
from natural_langevin.posterior.ensemble import (
    Estimate,
    Options,
    averaged,
    learned_by,
    stacked,
)
from natural_langevin.posterior.plan import Plan
from natural_langevin.posterior.prediction import Prediction, check_levels, join
from natural_langevin.posterior.units import Units, in_standard_units
from natural_langevin.priors import PriorLike
from natural_langevin.statistics import plain_copy, prepare_model
from natural_langevin.statistics.vectorised import MODEL_LOCK

log = logging.getLogger("natural_langevin")

#: A tensor, an array or a frame; several in a tuple; or by keyword in a dictionary.
Inputs = Any


class Posterior(Draws):
    """``samples[name]`` is (chain, draw, *shape); ``mean`` and ``last`` are (chain, *shape).

    ``mean`` is the running average theta_mean <- (1 - mu_t) theta_mean + mu_t theta of the *last*
    iterates (with mu_t = 1/sqrt(t), about 2 sqrt(t) of them), as in the paper: one network to
    predict with, not an estimate of the posterior mean. That is ``sample_mean``, over all kept
    draws.

    A chain that diverged keeps the samples drawn before; the missing ones are NaN. Predictions and
    the pooled mean leave it out.

    Predictions are calibrated on rows that the recipe held out (see ``calibration``). Classes: the
    mean of the networks' probabilities is raised to the power ``sharpness`` (1: none). Numbers:
    ``config["noise_widths"]`` weighs several noise levels, and ``config["spread"]`` is the share of
    the networks' distance from their mean that is kept. ``config["trained_share"]`` is the weight
    of the trained network that a run started from. Only predictions are affected: ``samples``,
    ``network`` and ``log_likelihood`` are those of the uncalibrated posterior.
    """

    @property
    def plan(self) -> Plan | None:
        """The plan that was run, with a reason for every choice. None if there was no plan
        (``optim``, older files)."""
        return Plan.from_config(self.config)

    def predict(
        self,
        x: Inputs | Iterable[Any],
        *,
        estimate: Estimate = "ensemble",
        batch_size: int = 1000,
        sample_batch: int = 16,
        keep_samples: bool = True,
        quantiles: Iterable[float] | float | None = None,
        chains: Chains = None,
        sharpness: float | None = None,
        calibrated: bool = True,
    ) -> Prediction:
        """Predictions averaged over networks: probabilities or means, never log-probabilities.

        At the defaults predictions are calibrated on the rows that the recipe held out, and are not
        the plain posterior predictive; ``calibrated=False`` is.

        Args:
            x: Inputs as the network was sampled with (a tensor, an array or a frame, several in a
                tuple, a dictionary), or an iterable of batches such as a DataLoader.
            estimate: "ensemble" of all draws; "mean", each chain's running mean; "last", its last
                iterate.
            batch_size: Inputs that are evaluated at once.
            sample_batch: Networks that are evaluated at once.
            keep_samples: Whether every network's own prediction is kept.
            quantiles: Levels such as (0.05, 0.95): ``Prediction.quantiles``.
            chains: Numbers of the chains to pool. None: all, unless they differ in temperature or
                prior; "all": pool these too.
            sharpness: The power of class probabilities; None is the posterior's own.
            calibrated: False is the posterior predictive of the model itself.
        """
        sharpness = _plain(sharpness, calibrated)
        options = Options(estimate, chains, batch_size, sample_batch, sharpness)
        found = averaged(
            self, x, options, keep_samples=keep_samples, levels=check_levels(quantiles),
            errors=keep_samples,
        )  # fmt: skip
        joined = join([averager.finish() for averager in found])
        infinite = int((~joined.mean.isfinite()).sum())
        if infinite:
            log.warning(
                "%d of %d predictions are not finite: x is not there, or the distribution of some "
                "networks has no mean, while it has quantiles=(0.05, 0.5, 0.95)",
                infinite, joined.mean.numel(),
            )  # fmt: skip
        if joined.samples is None or estimate != "ensemble" or joined.error is not None:
            return joined
        # The error is of the mean, which is that of the networks as they were drawn.
        values = joined.samples / options.of(self).spread
        error = monte_carlo.standard_error(values.unflatten(0, (-1, self.draws)))
        return joined._replace(error=error)

    def predict_dist(
        self,
        x: Inputs | Iterable[Any],
        *,
        estimate: Estimate = "ensemble",
        batch_size: int = 1000,
        sample_batch: int = 16,
        chains: Chains = None,
        sharpness: float | None = None,
        calibrated: bool = True,
    ) -> Distribution:
        """The predictive distribution as a ``torch.distributions`` object over the targets.

        Classes: a ``Categorical`` or ``Bernoulli`` with the probabilities ``predict(x).mean``.
        Numbers and counts: a ``Mixture`` over networks with ``mean``, ``variance`` (``aleatoric`` +
        ``epistemic``), ``log_prob``, ``cdf``, ``icdf(level)``, ``crps(y)`` and
        ``sample(shape, seed=0)``.
        """
        sharpness = _plain(sharpness, calibrated)
        options = Options(estimate, chains, batch_size, sample_batch, sharpness)
        first, *others = averaged(self, x, options, keep_samples=False, whole=True)
        return first.distribution(*others)

    def evaluate(
        self,
        x: Inputs,
        y: Any = None,
        *,
        ood: Tensor | None = None,
        estimate: Estimate = "ensemble",
        batch_size: int = 1000,
        sample_batch: int = 16,
        chains: Chains = None,
        sharpness: float | None = None,
        calibrated: bool = True,
    ) -> ClassificationScores | RegressionScores:
        """Scores the predictions on labelled data; ``print`` shows them.

        The negative log-likelihood is compared with that of a blind guess, which ignores the
        inputs, and with that of the best single network. ``verdicts`` say whether the predictions
        are usable.

        Args:
            x: Inputs; or inputs and targets together, as ``Langevin.sample`` takes them.
            y: Targets. Binary targets, and the positions of a sequence, count as samples each.
            ood: Out-of-distribution inputs: also scores how well epistemic uncertainty separates
                them from ``x``.
            estimate: As for ``predict``, like the other arguments.
        """
        sharpness = _plain(sharpness, calibrated)
        options = Options(estimate, chains, batch_size, sample_batch, sharpness)
        outside = None
        if ood is not None:
            outside = self.predict(ood, keep_samples=False, **options._asdict()).epistemic
        return evaluation.evaluate(
            self, *self.signature.labelled(x, y), outside=outside, options=options
        )

    def log_likelihood(
        self,
        x: Inputs,
        y: Any = None,
        *,
        chains: Chains = None,
        batch_size: int = 1000,
        sample_batch: int = 16,
    ) -> Tensor:
        """ln p(y_n | x_n, theta) of every draw and datum, in nats: (chain, draw, N).

        Leave-one-out cross-validation and WAIC need it: ``to_arviz(data=(x, y))`` passes it to
        ``arviz.loo``. It is never calibrated. At temperatures other than 1 the draws are not from
        the posterior that those formulas assume."""
        self._check_whole("log_likelihood")
        x, y = self.signature.labelled(x, y)
        return evaluation.log_likelihood(
            self, x, y, pooled=self.chosen(chains), batch_size=batch_size, sample_batch=sample_batch
        )

    def distill(
        self,
        x: Inputs,
        *,
        model: nn.Module | None = None,
        steps: int = 2000,
        batch_size: int = 100,
        learning_rate: float = 1e-3,
        seed: int = 0,
        sharpness: float | None = None,
        calibrated: bool = True,
    ) -> nn.Module:
        """One network that predicts like the whole ensemble, frozen and in eval mode.

        Args:
            x: Inputs to learn from, without labels.
            model: The student, of which a copy is trained. None: the network itself, from a chain's
                last iterate. A regression's student with twice the outputs learns the log of the
                total variance too.
            steps: Updates of Adam.
            batch_size: Inputs of a minibatch.
            learning_rate: Of Adam.
            seed: Of the order of the inputs.
            sharpness: As for ``predict``: 1.0 teaches the plain mixture.
            calibrated: As for ``predict``: False teaches the posterior predictive itself.
        """
        sharpness = _plain(sharpness, calibrated)
        first = self.healthy[0] if self.healthy else 0
        own = self._as_module(self._row_of(self.last, first)) if model is None else model
        student = copy.deepcopy(own)
        x = self._one_input(x, "distill").to(next(iter(self.last.values())).device)
        prediction = self.predict(x, keep_samples=False, sharpness=sharpness)
        law = None if prediction.total is None else self.predict_dist(x, sharpness=sharpness)
        return distillation.train(
            student.to(x.device), x,
            distillation.divergence(prediction, law, self._likelihood_at_mean(), seed),
            steps=steps, batch_size=batch_size, learning_rate=learning_rate, seed=seed,
        )  # fmt: skip

    def _likelihood_at_mean(self) -> Likelihood:
        """The likelihood for networks that are returned to users: its own parameter, if it was
        sampled, is fixed at the mean of its logarithm."""
        own, name = self.likelihood.own_parameter, weight_name(self.likelihood)
        if own is None or name is None or self.likelihood.outputs_per_target > 1:
            return self.likelihood
        value = float(self.samples[name][self.healthy].double().mean().exp())
        return replace(self.likelihood, **{own[0]: value})  # type: ignore[type-var]

    def export(
        self,
        path: str | os.PathLike[str],
        example: Inputs,
        *,
        format: export.Format = "torch",
        estimate: Estimate = "ensemble",
        sharpness: float | None = None,
    ) -> None:
        """Writes the predictor as one file for serving. It maps inputs to (mean, total, epistemic),
        as ``predict`` does; sharpened probabilities agree to 0.01.

        Args:
            path: The file.
            example: Example inputs; the number of rows may differ later.
            format: "torch" (``torch.export``, .pt2) or "onnx" (the extra ``export``).
            estimate: As for ``predict``.
            sharpness: As for ``predict``.
        """
        self._check_whole("export")
        own, chains = (
            self.calibrated(estimate == "ensemble" and sharpness is None),
            self.chosen(None),
        )
        every = stacked(own, estimate)
        state = learned_by(own, chains, len(next(iter(every.values()))) // len(chains))
        sharpness = own.sharpness if sharpness is None else check_number("sharpness", sharpness)
        with MODEL_LOCK:
            served = export.Served(
                self.template, self.likelihood, every, state, sharpness, own.spread
            )
            example = self._one_input(example, "export")
            export.write(served, path, example.to(next(iter(every.values())).device), format)

    def diagnose(
        self,
        x: Inputs,
        *,
        data: Any = None,
        prior: PriorLike | None = None,
        parameters: Iterable[str] = (),
        beyond: bool = True,
        batch_size: int = 1000,
        max_draws: int = 100,
        chains: Chains = None,
        halved: Posterior | None = None,
        held_out: Any = None,
    ) -> diagnostics.Diagnosis:
        """Tests whether the chains have converged, explore, and have the right noise; ``print``
        shows the result.

        R-hat and effective sample size of the network's outputs, distances between chains,
        divergences, and the temperature of a step that the run measured.

        Args:
            x: Inputs at which predictions are compared; a few dozen are enough.
            data: The training data (x, y): also measures the temperature of the samples.
            prior: The prior, which a loaded posterior does not hold; needed with ``data``.
            parameters: Patterns of names of parameters to compare as well.
            beyond: Whether predictions are also compared between and outside of the rows ``x``, at
                corners, and with shuffled columns.
            batch_size: Random rows for each draw's temperature.
            max_draws: Draws for the temperature of the samples.
            chains: As for ``predict``.
            halved: A posterior of the same sampler at half the step size: shows the bias of the
                step.
            held_out: Rows (x, y) that the run has not seen: also says whether predictions are
                usable.
        """
        scores = None
        if held_out is not None:
            scores = self.evaluate(*self.signature.split(held_out), chains=chains)
        return diagnosis.diagnose(
            self, x, data=data, prior=prior, parameters=parameters, beyond=beyond,
            batch_size=batch_size, max_draws=max_draws, chains=chains, halved=halved,
            scores=scores,
        )  # fmt: skip

    def followed(self, x: Tensor, chains: Chains) -> Tensor:
        """Every network's outputs, (chain, draw, B, ...); for classes, probabilities."""
        return diagnosis.followed(self, x, self.chosen(chains))

    def to_arviz(
        self, x: Inputs | None = None, *, data: Any = None, chains: Chains = None, seed: int = 0
    ) -> Any:
        """The draws of the ``chains`` (as in ``predict``) that did not diverge, for ArviZ: an
        ``InferenceData`` before its version 1, a ``DataTree`` since. There is one variable per
        parameter tensor, and ``prediction`` for the inputs ``x`` if they are given, uncalibrated.
        With the training ``data`` (x, y), also the groups ``log_likelihood`` (for ``arviz.loo`` and
        ``arviz.compare``), ``posterior_predictive`` (targets drawn with ``seed``, one of every
        network), ``observed_data``, and in ``sample_stats`` the log density ``lp`` of every draw
        (not for a saved posterior, which has no prior)."""
        self._check_whole("to_arviz")
        wanted, predictions, pointwise = self.chosen(chains), None, None
        if x is not None:
            predictions = self.predict(x, chains=wanted, sharpness=1.0).samples
        if data is not None:
            pointwise = self.log_likelihood(*self.signature.split(data), chains=wanted)
        return arviz.inference_data(self, wanted, predictions, data, pointwise, seed=seed)

    def in_standard_units(self) -> tuple[Posterior, Units]:
        """The posterior as it was sampled, and the units that data have there."""
        return in_standard_units(self)

    def log_density(self, data: Any) -> Tensor:
        """The unnormalised log posterior of every draw of the chains that did not diverge, over the
        ``data`` (x, y): ln alpha(theta) + beta sum_n ln p(y_n | x_n, theta), beta the power of the
        likelihood, at temperature 1, in nats and float64, (chain, draw). ``Langevin.log_density``
        computes it for any weights."""
        if self.prior is None:
            raise ValueError(
                "the log density needs the prior, which a saved posterior does not hold: "
                "Langevin(...).log_density(weights, data) has one"
            )
        pointwise = self.log_likelihood(*self.signature.split(data), chains="all")
        return arviz.log_density(self, self.healthy, pointwise)

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Writes the posterior to a folder as safetensors and JSON, never pickle.

        Saved are samples, running means, last iterates, the likelihood, the trace and the
        configuration. Not saved are the model's code, its frozen parameters and its buffers: of
        these a fingerprint is kept, and ``load`` refuses a model in which they differ. A posterior
        that the folder held before is replaced atomically: a save that fails or is killed leaves it
        unchanged. Samples that the run already wrote to this folder (``store=folder``) stay in
        place.
        """
        run = {"diverged": self.diverged.long(), "trace": self.trace.double()}
        storage.write(
            Path(folder),
            model=self.template,
            samples=self.samples,
            groups={
                "mean": self.mean,
                "last": self.last,
                "learned": self.learned,
                "run": run,
                "trained": self.trained,
            },
            likelihood=self.likelihood,
            config=self.config,
            processes=self.processes,
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

        With ``memory_map=True`` the samples stay on the disk and are read when needed, so that more
        of them can be used than fit into memory; do not change the folder meanwhile. The checksum
        of every file is verified: a damaged file, or one of another model, raises ``StorageError``.
        """
        model = plain_copy(model)
        prepare_model(model)
        samples, groups, found, config = storage.read(
            Path(folder), model, likelihood, memory_map=memory_map
        )
        device = next(p.device for p in model.parameters() if p.requires_grad)
        moved = {g: {k: v.to(device) for k, v in values.items()} for g, values in groups.items()}
        posterior = Posterior(
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
        posterior.trained = moved.get("trained", {})
        return posterior


def _plain(sharpness: float | None, calibrated: bool) -> float | None:
    """The sharpness to use: 1.0 for uncalibrated predictions."""
    if not calibrated and sharpness is not None:
        raise ValueError(f"calibrated=False is without sharpness, got sharpness={sharpness!r} too")
    return sharpness if calibrated else 1.0
