"""One table, one network: runs ``Langevin`` on it, for all data or for folds on the chain axis."""

from __future__ import annotations

import hashlib
import math
import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from natural_langevin._internal.proven import proven_network
from natural_langevin.data.streams import Subsets
from natural_langevin.dynamics import Underdamped
from natural_langevin.langevin import Langevin
from natural_langevin.posterior.posterior import Posterior
from natural_langevin.recipe.decide import Asked
from natural_langevin.run.loop import DivergenceError
from natural_langevin.run.run import Options
from natural_langevin.tabular.candidates import TRIES, Candidate, prior_of
from natural_langevin.tabular.outcome import Outcome
from natural_langevin.tabular.predictive import Networks
from natural_langevin.tabular.settings import PRECONDITIONERS, USUAL_FOLDS, Settings
from natural_langevin.tabular.weighing import HeldOut

#: Rows that a network is asked for to see whether it is sound.
SOUND_ROWS = 500
#: Rows (of numbers, of classes) from which only so many of the folds are run.
MANY_ROWS, FEW_FOLDS = (500, 5000), 2
#: Networks evaluated at once.
AT_ONCE = 64
#: Second order in the step: at the same cost it goes ten times as far as the overdamped step.
DYNAMICS = Underdamped(friction=0.1, integrator="baoab")


@dataclass(frozen=True)
class Warming:
    """eta_t = eta (1 + t/p)^(-1/3), and along the first p steps t/p of that: a metric that has seen
    few batches is not to be trusted with whole steps."""

    sizes: Tensor
    period: int

    def __call__(self, step: int) -> Tensor:
        return self.table(step, step + 1)[0]

    def table(self, start: int, stop: int) -> Tensor:
        """(step, chain)."""
        ratio = torch.arange(start, stop, dtype=torch.float64)[:, None] / self.period
        rising = (ratio + 1 / self.period).clamp_max(1.0)
        return self.sizes.double() * rising * (1 + ratio) ** (-1 / 3)


@dataclass(frozen=True)
class Problem:
    """Everything of a fit that does not depend on the candidate. ``x``: what the networks are
    given (``view`` says how it came about, in words); ``y``: as it is sampled.

    ``counts`` (n,), where rows have weights: how often each is repeated, ``num_data`` data in all.
    ``checkpoint``: a folder; the same problem goes on from what it holds."""

    outcome: Outcome
    settings: Settings
    x: Tensor
    y: Tensor
    counts: Tensor | None = None
    num_data: int | None = None
    device: str | None = None
    progress: bool = False
    checkpoint: str | os.PathLike[str] | None = None
    view: str = ""

    @property
    def network(self) -> nn.Module:
        """A fresh network for these inputs and this outcome."""
        return self.outcome.network(self.x.shape[1], self.settings)

    def posterior(self, candidate: Candidate, chains: int) -> Posterior:
        """A posterior of all data, of so many chains."""
        rows = self._repeated
        title = f"learning from all rows ({candidate})"
        data = (self.x[rows], self.y[rows])
        return self._run(
            [candidate] * chains, data, len(rows), title, f"all {candidate}",
            steps=self.settings.updates, seed=self.settings.seed,
        )  # fmt: skip

    def sound(self, posterior: Posterior) -> Tensor:
        """The numbers of the networks that explain the training rows about as well as the others.

        A network whose ln p is a nat per row below that of the better ones (their upper quartile)
        is no draw of the posterior, under which it has e^-n of their density: its chain ran away
        without becoming infinite."""
        rows = self._repeated
        some = rows[torch.linspace(0, len(rows) - 1, min(len(rows), SOUND_ROWS)).long()]
        said = networks(posterior, self.network, self.x[some])
        fit = said.law(self.outcome).log_prob(self.y[some])
        fit = fit.flatten(2).sum(-1) if fit.ndim > 2 else fit
        fit = fit.double().mean(1).nan_to_num(nan=-math.inf)
        fine = (fit >= fit.quantile(0.75) - 1) & fit.isfinite()
        return fine.nonzero().flatten()

    def held_out(
        self, offered: Sequence[Candidate], folds: Sequence[Tensor], what: str = "candidates"
    ) -> tuple[HeldOut, list[Candidate]]:
        """What networks that have not seen a fold's rows say of them, for every candidate; and the
        candidates, with smaller step sizes where chains diverged.

        The folds are chains, and so are the candidates: those with a Gaussian prior are one run."""
        found: dict[int, list[Networks]] = {}
        tried = list(offered)
        for learned in (False, True):
            group = [k for k, c in enumerate(tried) if (c.variance == "learned") == learned]
            for attempt in range(TRIES):
                group = [k for k in group if k not in found]
                if not group:
                    break
                title = f"comparing {what} on held-out rows"
                ran = self._of_group(tried, group, folds, title)
                last = attempt == TRIES - 1
                found |= {k: v for k, v in ran.items() if last or not self._astray(v, folds)}
                for k in group:
                    if k not in found and tried[k].automatic and not last:
                        tried[k] = tried[k].smaller()
        if not found:
            raise DivergenceError(
                "no candidate ran to its end in cross-validation: give a smaller step_size"
            )
        rows = torch.cat(list(folds))
        return HeldOut(rows, {k: found[k] for k in sorted(found)}), tried

    def _astray(self, said: list[Networks], folds: Sequence[Tensor]) -> bool:
        """Whether a chain ran away without becoming infinite: of some fold it says something worse,
        by more than a nat per row, than a guess that looks at no input."""
        if not (self.outcome.classes or self.outcome.real):
            return False
        blind = math.log(self.outcome.classes or 1) or 1.42 * len(self.outcome.mean)
        for one, fold in zip(said, folds, strict=True):
            fit = one.law(self.outcome).log_prob(self.y[fold])
            fit = fit.flatten(2).sum(-1) if fit.ndim > 2 else fit
            fit = torch.logsumexp(fit.double(), 0).mean() - math.log(len(fit))
            if not float(fit) > -blind - 1:
                return True
        return False

    def _of_group(
        self, offered: Sequence[Candidate], group: list[int], folds: Sequence[Tensor], title: str
    ) -> dict[int, list[Networks]]:
        rows, each = self._repeated, self.settings.chains_per_fold
        seen = [(~torch.isin(rows, fold)).nonzero().flatten() for fold in folds]
        size = min(map(len, seen))  # of repeated rows the folds may differ by some
        chains = [(k, f) for k in group for f in range(len(folds)) for _ in range(each)]
        own_rows = torch.stack([seen[f][:size] for _, f in chains])
        data = Subsets(self.x[rows], self.y[rows], own_rows)
        runs = [offered[k] for k, _ in chains]
        name = (
            f"folds {self.outcome.noise} {self.outcome.log} {self.view} {self.settings.activation} "
            f"{self.settings.hidden} {'; '.join(map(str, runs[::each]))}"
        )
        try:
            run = self._run(
                runs, data, size, title, name,
                steps=math.ceil(self.settings.updates / 2), seed=self.settings.seed + 1,
            )  # fmt: skip
        except DivergenceError:
            return {}
        running = [chains[c] for c in run.healthy]
        every = len(folds) * each
        fine = [k for k in group if sum(chain[0] == k for chain in running) == every]
        found: dict[int, list[Networks]] = {k: [] for k in fine}
        for f, fold in enumerate(folds):
            for k in fine:
                own = [c for c in run.healthy if chains[c] == (k, f)]
                found[k].append(networks(run, self.network, self.x[fold], own))
        return found

    @property
    def _repeated(self) -> Tensor:
        """Every row as often as it counts."""
        rows = torch.arange(len(self.x))
        return rows if self.counts is None else rows.repeat_interleave(self.counts)

    def _run(
        self,
        runs: Sequence[Candidate],
        data: Any,
        rows: int,
        title: str,
        name: str,
        *,
        steps: int,
        seed: int,
    ) -> Posterior:
        """One chain for every entry of ``runs``; their priors are all learned or all Gaussian."""
        first, settings, network = runs[0], self.settings, self.network
        step_size: Any = first.step_size
        if first.automatic:
            sizes = torch.tensor([c.step_size for c in runs], dtype=torch.float64)
            step_size = Warming(sizes, max(1, steps // 10))
        total = len(self.x) if self.counts is None else int(self.counts.sum())
        num_data = max(1, round((self.num_data or total) * rows / total))
        sampler = Langevin(
            network,
            self.outcome.likelihood,
            prior=prior_of(runs, network),
            preconditioner=PRECONDITIONERS[settings.preconditioner](),
            step_size=step_size,
            temperature=torch.tensor([c.temperature for c in runs], dtype=torch.float64),
            chains=len(runs),
            num_data=num_data,
            dynamics=DYNAMICS,
            init="fan_in",
            seed=seed,
            device=self.device,
        )
        folder = None
        if self.checkpoint is not None:
            label = "".join(c if c.isalnum() else "-" for c in name)[:60]
            digest = hashlib.sha256(name.encode()).hexdigest()[:12]  # long names begin alike
            folder = Path(self.checkpoint) / f"{label}-{digest}"
        burn_in = steps // 2
        asked = Asked(
            steps=steps,
            batch_size=min(settings.batch, rows),
            burn_in=burn_in,
            thin=math.ceil((steps - burn_in) / settings.draws),
        )
        options = Options(
            checkpoint=folder,
            every=max(1, steps // 10),
            progress=title if self.progress else False,
            trial=first.automatic,
            partial=False,
        )
        with proven_network():
            return sampler.sampled(data, asked, options)


def networks(
    posterior: Posterior, network: nn.Module, x: Tensor, chains: Sequence[int] | None = None
) -> Networks:
    """What every network of these chains (default: the healthy ones) says, on the CPU."""
    chains = posterior.healthy if chains is None else list(chains)
    if not chains:
        raise DivergenceError("every chain diverged: there is nothing to predict with")
    everywhere = posterior.shards.everywhere  # several processes have some of the chains each
    stacked = {k: everywhere(s)[chains].flatten(0, 1) for k, s in posterior.samples.items()}
    like = next(iter(stacked.values()))
    network, x = network.to(like.device), x.to(like)

    def one(params: dict[str, Tensor]) -> Tensor:
        return torch.func.functional_call(network, params, (x,))

    with torch.no_grad():
        outputs = torch.func.vmap(one, chunk_size=AT_ONCE)(stacked).cpu()
    variance = posterior.learned.get("variance")
    if variance is not None:
        variance = variance[chains].cpu().repeat_interleave(posterior.draws)
    return Networks(outputs, variance)


def split(
    count: int, folds: int, seed: int, labels: NDArray[Any] | None, most: int = 500
) -> list[Tensor]:
    """Rows of every fold, of one size; with ``labels`` every class is spread over all folds. Of
    many rows FEW_FOLDS of the usual number tell enough."""
    from sklearn.model_selection import KFold, StratifiedKFold

    enough = labels is not None and np.bincount(labels).max() >= folds
    kind = (StratifiedKFold if enough else KFold)(folds, shuffle=True, random_state=seed % 2**32)
    generator = np.random.default_rng(seed + 1)
    with warnings.catch_warnings():  # a class of fewer rows than folds is in some of them only
        warnings.simplefilter("ignore", UserWarning)
        parts = [generator.permutation(held) for _, held in kind.split(np.empty(count), labels)]
    if folds == USUAL_FOLDS and count >= MANY_ROWS[labels is not None]:
        parts = parts[:FEW_FOLDS]
    size = min(*map(len, parts), most)
    return [torch.as_tensor(np.sort(part[:size])) for part in parts]
