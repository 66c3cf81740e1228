"""Stan programs of posteriordb as networks: about ten lines each, priors included.

A model maps a row of data to the parameters of its own likelihood. Numbers that must be positive,
bounded or ordered are sampled on the free scale; the prior's ``constrain`` brings them back, with
the Jacobian in the prior. ``quantities`` computes what the reference names, from samples.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from natural_langevin import Langevin, Posterior, likelihoods, preconditioners, priors

FOLDER = Path(__file__).parent / "posteriordb"
Samples = dict[str, Tensor]
_NORMAL = likelihoods.HeteroscedasticGaussian()


@dataclass
class Model:
    """A posterior: network, data, prior, and the reference's numbers."""

    network: nn.Module
    x: Tensor
    y: Tensor
    prior: dict[str, priors.Prior]
    quantities: Callable[[Samples], Samples]  # (chain, draw, *shape) each
    likelihood: likelihoods.Likelihood = _NORMAL
    reference: dict[str, dict[str, float]] = field(default_factory=dict)

    def sampler(self, **options: Any) -> Langevin:
        """Chains that start where the network is."""
        return Langevin(self.network, self.likelihood, prior=self.prior, **options)

    def errors(self, samples: Samples) -> dict[str, Error]:
        """Against the reference, over all chains and draws, by its names."""
        found = {}
        for name, values in self.quantities(samples).items():
            columns = values.double().flatten(2)
            for k in range(columns.shape[2]):
                key = name if columns.shape[2] == 1 else f"{name}[{k + 1}]"
                found[key] = _error(columns[:, :, k], **self.reference[key])
        return found


class Error(NamedTuple):
    """``mean``: in the reference's standard deviations; ``sd``: as a fraction of it. Both with
    their Monte-Carlo errors, of 10,000 reference draws and of chains that are independent."""

    mean: float
    mean_error: float
    sd: float
    sd_error: float


def _error(values: Tensor, mean: float, sd: float) -> Error:
    chains, centred = len(values), values - values.mean()
    of_mean = float(centred.mean(1).std()) / chains**0.5 / sd
    spread = float(centred.square().mean(1).std()) / chains**0.5 / (2 * float(values.var()))
    reference = 10_000**-0.5
    return Error(
        (float(values.mean()) - mean) / sd, math.hypot(of_mean, reference),
        float(values.std()) / sd - 1, math.hypot(spread, reference / 2**0.5),
    )  # fmt: skip


class Linear(nn.Module):
    """y ~ normal(alpha + x beta, sigma); sigma = e^u."""

    def __init__(self, inputs: int, *, bias: bool = True) -> None:
        super().__init__()
        self.line = nn.Linear(inputs, 1, bias=bias)
        self.u = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        mean = self.line(x)
        return torch.cat([mean, 2 * self.u.expand_as(mean)], -1)


def _line(samples: Samples) -> Samples:
    """Stan's names of a line whose intercept is beta[1]."""
    beta = torch.cat([samples["line.bias"], samples["line.weight"][..., 0, :]], -1)
    return {"beta": beta, "sigma": samples["u"].exp()}


def ark(data: dict[str, Any]) -> Model:
    y, k = _tensor(data["y"]), data["K"]
    lags = torch.stack([y[k - j - 1 : len(y) - j - 1] for j in range(k)], 1)
    wide = priors.Gaussian(100.0)
    return Model(
        Linear(k), lags, y[k:, None],
        {"line.*": wide, "u": priors.HalfCauchy(2.5)},
        lambda s: {"alpha": s["line.bias"], "beta": s["line.weight"][..., 0, :],
                   "sigma": s["u"].exp()},
    )  # fmt: skip


def kidiq(data: dict[str, Any]) -> Model:
    x = torch.stack([_tensor(data["mom_hs"]), _tensor(data["mom_iq"])], 1)
    prior = {"line.*": priors.Flat(), "u": priors.HalfCauchy(2.5)}
    return Model(Linear(2), x, _tensor(data["kid_score"])[:, None], prior, _line)


def mesquite(data: dict[str, Any]) -> Model:
    d = {k: _tensor(v) for k, v in data.items() if isinstance(v, list)}
    area, height = d["diam1"] * d["diam2"], d["canopy_height"]
    columns = [area * height, area, d["diam1"] / d["diam2"], d["total_height"], d["density"]]
    x = torch.stack([*(c.log() for c in columns), d["group"]], 1)
    prior = {"line.*": priors.Flat(), "u": priors.Positive()}
    return Model(Linear(6), x, d["weight"].log()[:, None], prior, _line)


_FLAT = {"line.*": priors.Flat(), "u": priors.Positive()}


def raw_mesquite(data: dict[str, Any]) -> Model:
    names = ("diam1", "diam2", "canopy_height", "total_height", "density", "group")
    x = torch.stack([_tensor(data[k]) for k in names], 1)
    return Model(Linear(6), x, _tensor(data["weight"])[:, None], dict(_FLAT), _line)


def nes(data: dict[str, Any]) -> Model:
    age = _tensor(data["age_discrete"])
    columns = [
        *(_tensor(data[k]) for k in ("real_ideo", "race_adj")),
        *((age == k).double() for k in (2, 3, 4)),
        *(_tensor(data[k]) for k in ("educ1", "gender", "income")),
    ]
    y = _tensor(data["partyid7"])[:, None]
    return Model(Linear(8), torch.stack(columns, 1), y, dict(_FLAT), _line)


def logearn(data: dict[str, Any]) -> Model:
    height, male = _tensor(data["height"]), _tensor(data["male"])
    x = torch.stack([height, male, height * male], 1)
    return Model(Linear(3), x, _tensor(data["earn"]).log()[:, None], dict(_FLAT), _line)


def blr(data: dict[str, Any]) -> Model:
    prior = {"line.weight": priors.Gaussian(100.0), "u": priors.HalfNormal(10.0)}
    return Model(
        Linear(data["D"], bias=False), _tensor(data["X"]), _tensor(data["y"])[:, None], prior,
        lambda s: {"beta": s["line.weight"][..., 0, :], "sigma": s["u"].exp()},
    )  # fmt: skip


class Schools(nn.Module):
    """theta_j = mu + tau z_j of school j, whose effect was measured with a known error."""

    def __init__(self) -> None:
        super().__init__()
        self.z, self.mu = nn.Parameter(torch.zeros(8)), nn.Parameter(torch.zeros(1))
        self.u = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        theta = self.mu + self.u.exp() * (x[:, :8] @ self.z)
        return torch.stack([theta, 2 * x[:, 8].log()], -1)


def eight_schools(data: dict[str, Any]) -> Model:
    x = torch.cat([torch.eye(8).double(), _tensor(data["sigma"])[:, None]], 1)
    prior = {"z": priors.Gaussian(1.0), "mu": priors.Gaussian(25.0), "u": priors.HalfCauchy(5.0)}

    def quantities(s: Samples) -> Samples:
        tau = s["u"].exp()
        return {"theta": s["mu"] + tau * s["z"], "mu": s["mu"], "tau": tau}

    return Model(Schools(), x, _tensor(data["y"])[:, None], prior, quantities)


ORDER, SHARE = priors.Ordered(4.0), priors.Beta(5.0, 5.0)


class TwoNormals(nn.Module):
    """mu_1 < mu_2, their standard deviations e^u, and the share of the first."""

    def __init__(self) -> None:
        super().__init__()
        self.means, self.u = nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(2))
        self.share = nn.Parameter(torch.zeros(1))

    def forward(self, y: Tensor) -> Tensor:
        share = SHARE.constrain(self.share)
        parts = torch.cat([ORDER.constrain(self.means), self.u, share.log(), (1 - share).log()])
        return parts.expand(len(y), 6)


def _mixture_loss(outputs: Tensor, y: Tensor) -> Tensor:
    mean, log_sd, log_share = outputs.unflatten(-1, (3, 2)).unbind(-2)
    z = (y - mean) * (-log_sd).exp()
    terms = log_share - log_sd - z.square() / 2 - math.log(2 * math.pi) / 2
    return -terms.logsumexp(-1)


def gauss_mix(data: dict[str, Any]) -> Model:
    y = _tensor(data["y"])[:, None]
    prior = {"means": ORDER, "u": priors.HalfNormal(2.0), "share": SHARE}
    return Model(
        TwoNormals(), y, y, prior,
        lambda s: {"mu": ORDER.constrain(s["means"]), "sigma": s["u"].exp(),
                   "theta": SHARE.constrain(s["share"])},
        likelihoods.LogLoss(_mixture_loss),
    )  # fmt: skip


#: name -> the file, and how its data become a model.
MODELS: dict[str, tuple[str, Callable[[dict[str, Any]], Model]]] = {
    "arK": ("arK-arK", ark),
    "kidiq": ("kidiq-kidscore_momhsiq", kidiq),
    "mesquite": ("mesquite-logmesquite_logvas", mesquite),
    "raw mesquite": ("mesquite-mesquite", raw_mesquite),
    "nes": ("nes1980-nes", nes),
    "logearn": ("earnings-logearn_interaction", logearn),
    "sblrc": ("sblrc-blr", blr),
    "eight schools": ("eight_schools-eight_schools_noncentered", eight_schools),
    "gauss mix": ("low_dim_gauss_mix-low_dim_gauss_mix", gauss_mix),
}


def load(name: str, *, at_mode: bool = True) -> Model:
    """In float64, with the network near the mode where only its neighbourhood is tested."""
    file, make = MODELS[name]
    found = json.loads((FOLDER / f"{file}.json").read_text())
    model = make(found["data"])
    model.reference = found["reference"]
    model.network.double()
    if at_mode:
        _to_mode(model)
    return model


def at_the_defaults(
    name: str,
    metric: str = "default",
    *,
    chains: int,
    parts: int = 1,
    at_mode: bool = False,
    **length: Any,
) -> tuple[Model, Posterior]:
    """A run by the recipe from where the network happens to be (or near the mode), with batches of
    all data or one of so many ``parts``; ``length``: what of ``steps``, ``burn_in`` and ``thin`` is
    given."""
    torch.manual_seed(0)
    model = load(name, at_mode=at_mode)
    own = {} if metric == "default" else {"preconditioner": getattr(preconditioners, metric)()}
    posterior = model.sampler(chains=chains, **own).sample(
        (model.x, model.y), batch_size=len(model.x) // parts, progress=False, **length
    )
    return model, posterior


def _to_mode(model: Model) -> None:
    """Least squares for a line, and a rough start elsewhere."""
    if isinstance(model.network, Linear):
        with torch.no_grad():
            ones = torch.ones_like(model.y)
            columns = [model.x, ones] if model.network.line.bias is not None else [model.x]
            beta = torch.linalg.lstsq(torch.cat(columns, 1), model.y).solution[:, 0]
            width = model.x.shape[1]
            model.network.line.weight.copy_(beta[None, :width])
            if model.network.line.bias is not None:
                model.network.line.bias.copy_(beta[width:])
            residual = model.y - model.network.line(model.x)
            model.network.u.fill_(residual.square().mean().sqrt().log())
        return
    if isinstance(model.network, TwoNormals):
        with torch.no_grad():
            model.network.means.copy_(torch.tensor([-2.7, math.log(5.6)]))


def _tensor(values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)
