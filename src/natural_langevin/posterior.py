"""Posterior: the kept samples of every chain, their running mean, and predictions from them."""

from __future__ import annotations

import copy
import logging
import os
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from natural_langevin import diagnostics, networks, storage
from natural_langevin.gradients import prepare_model
from natural_langevin.likelihoods import Bernoulli, Likelihood

log = logging.getLogger("natural_langevin")

Params = dict[str, Tensor]
Estimate = Literal["ensemble", "mean", "last"]


class Prediction(NamedTuple):
    """Predictions for B inputs, averaged over networks.

    Classes: ``mean`` holds probabilities (B, K); uncertainties are entropies in nats (B,): total =
    entropy of the mean, aleatoric = mean entropy, epistemic = their difference (the mutual
    information between label and weights). Regression: ``mean`` is the predictive mean and the
    uncertainties are variances, total = aleatoric (sigma^2) + epistemic; None where the
    likelihood does not know its noise.
    """

    mean: Tensor
    total: Tensor | None
    aleatoric: Tensor | None
    epistemic: Tensor
    samples: Tensor | None  # (network, B, ...) in the order chain, then draw


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
        self._model = model

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
        params = {name: s[chain, draw] for name, s in self.samples.items()}
        if not all(torch.isfinite(p).all() for p in params.values()):
            raise ValueError(
                f"chain {chain} diverged at step {int(self.diverged[chain])}, before draw {draw}"
            )
        return self._as_module(params)

    def mean_network(self, chain: int | None = None) -> nn.Module:
        """The network at the running mean of one chain, or at the average over healthy chains."""
        if chain is not None:
            return self._as_module({name: m[chain] for name, m in self.mean.items()})
        return self._as_module({name: m[self.healthy].mean(0) for name, m in self.mean.items()})

    def predict(
        self,
        x: Tensor,
        *,
        estimate: Estimate = "ensemble",
        batch_size: int = 1000,
        sample_batch: int = 16,
        keep_samples: bool = True,
    ) -> Prediction:
        """Averages *probabilities* (or means) over networks: never log-probabilities.

        ``estimate``: "ensemble" of all kept samples; "mean", the networks at each chain's running
        mean; "last", at each chain's last iterate. At most ``sample_batch`` networks times
        ``batch_size`` inputs are evaluated at once.
        """
        samples = self._networks(estimate)
        device = next(iter(self.last.values())).device
        parts = [
            self._predict_batch(samples, part.to(device), sample_batch, keep_samples)
            for part in x.split(batch_size)
        ]
        joined = [
            None if column[0] is None else torch.cat(column, dim=1 if index == 4 else 0)
            for index, column in enumerate(zip(*parts, strict=True))
        ]
        return Prediction(*joined)  # type: ignore[arg-type]

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

    def _predict_batch(
        self, samples: Params, x: Tensor, sample_batch: int, keep_samples: bool
    ) -> Prediction:
        count = len(self.healthy) * next(iter(samples.values())).shape[1]
        kept: list[Tensor] = []
        mean = second = entropy = torch.zeros((), device=x.device)
        with torch.no_grad():
            for chunk in networks.chunks(samples, self.healthy, sample_batch, like=self.last):
                p = self._outputs(chunk, x)
                if self.likelihood.discrete:
                    mean = mean + p.sum(0) / count
                    entropy = entropy + self._entropy(p).sum(0) / count
                else:  # in float64, where the difference of two large squares survives
                    mean = mean + p.double().sum(0) / count
                    second = second + p.double().square().sum(0) / count
                if keep_samples:
                    kept.append(p)
        outputs = torch.cat(kept) if kept else None
        if self.likelihood.discrete:
            total = self._entropy(mean)
            return Prediction(mean, total, entropy, (total - entropy).clamp_min(0), outputs)
        epistemic = (second - mean.square()).clamp_min(0).to(p.dtype)
        mean = mean.to(p.dtype)
        noise = self.likelihood.noise_variance(
            {k: v[self.healthy].mean(0) for k, v in self.learned.items()}
        )
        if noise is None:
            return Prediction(mean, None, None, epistemic, outputs)
        aleatoric = noise.to(mean).expand(mean.shape)
        return Prediction(mean, aleatoric + epistemic, aleatoric, epistemic, outputs)

    def _outputs(self, params: Params, x: Tensor) -> Tensor:
        """Predictions of several networks: (network, B, ...)."""

        def one(p: Params) -> Tensor:
            outputs = functional_call(self._model, p, (x,))
            if not isinstance(outputs, Tensor):
                raise TypeError(
                    f"predict needs a network whose output is one tensor, got a "
                    f"{type(outputs).__name__}: average what you need over the networks "
                    "posterior.network(chain, draw)"
                )
            return self.likelihood.predictive(outputs)

        return vmap(one)(params)

    def _entropy(self, p: Tensor) -> Tensor:
        if isinstance(self.likelihood, Bernoulli):
            return torch.special.entr(p) + torch.special.entr(1 - p)
        return torch.special.entr(p).sum(-1)

    def diagnose(self, x: Tensor) -> diagnostics.Diagnosis:
        """R-hat and effective sample size of the predictions on probe inputs ``x``, in words.

        ``print(posterior.diagnose(x))`` says what was found and what to do about it. A few dozen
        inputs are enough. Needs ArviZ (the extra ``diagnostics``).
        """
        predictions = self.predict(x).samples
        assert predictions is not None
        by_chain = predictions.unflatten(0, (len(self.healthy), self.draws))
        stopped = {c: int(s) for c, s in enumerate(self.diverged.tolist()) if s >= 0}
        return diagnostics.diagnose(by_chain, stopped)

    def to_arviz(self) -> Any:
        """The samples as an ArviZ ``InferenceData``: one variable per parameter tensor."""
        arviz = diagnostics.import_arviz()
        return arviz.from_dict(
            {name: s.to(self.last[name].dtype).cpu().numpy() for name, s in self.samples.items()}
        )

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
        storage.write(
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
        model = copy.deepcopy(model)
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
        model = copy.deepcopy(self._model)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if name in params:
                    parameter.copy_(params[name])
        return model
