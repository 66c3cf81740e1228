"""A LightningModule that samples its weights instead of fitting them, on scikit-learn's digits.

Two things differ from a module trained by SGD: ``configure_optimizers`` returns
``NaturalLangevin``, and the trainer gets a callback that collects. Lightning does the rest,
checkpoints included. The picture compares the last weights alone with the average over all weights
that were kept.

    python examples/lightning_digits.py --out runs/lightning_digits
"""

from __future__ import annotations

import argparse
import json
import logging
from pathlib import Path

import lightning.pytorch as lightning
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from natural_langevin import Posterior, data, likelihoods, metrics, models, priors
from natural_langevin.integrations.lightning import CollectPosterior
from natural_langevin.optim import NaturalLangevin


class Classifier(lightning.LightningModule):
    def __init__(self, num_data: int, *, lr: float, seed: int) -> None:
        super().__init__()
        self.num_data, self.lr, self.seed = num_data, lr, seed
        self.network = models.mlp(64, 10, (100,), seed=seed)

    def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> Tensor:
        x, y = batch
        loss = F.cross_entropy(self.network(x), y)
        self.log("loss", loss)
        return loss

    def configure_optimizers(self) -> NaturalLangevin:
        return NaturalLangevin(
            self.network,
            likelihoods.Categorical(),
            num_data=self.num_data,  # sets the size of the noise and the weight of the prior
            lr=self.lr,
            prior=priors.Gaussian(variance=0.1),
            seed=self.seed,
        )


def sample(found: data.Dataset, options: argparse.Namespace) -> Posterior:
    training = TensorDataset(found.train_x, found.train_y)
    generator = torch.Generator().manual_seed(options.seed)
    loader = DataLoader(training, batch_size=100, shuffle=True, generator=generator)
    steps, thin = (90, 6) if options.quick else (6_000, 50)
    collect = CollectPosterior(burn_in=steps // 3, thin=thin)
    trainer = lightning.Trainer(
        max_steps=steps,
        callbacks=[collect],
        accelerator="cpu" if options.device == "cpu" else "gpu",
        devices=1,
        default_root_dir=options.out,
        logger=False,
        enable_checkpointing=False,
        enable_model_summary=False,
        enable_progress_bar=False,
    )
    trainer.fit(Classifier(len(training), lr=2e-3, seed=options.seed), loader)
    return collect.posterior


def draw(posterior: Posterior, x: Tensor, y: Tensor, file: Path) -> None:
    figure = Figure(figsize=(4.2, 3.6), layout="constrained")
    axes = figure.subplots()
    for name, p in probabilities(posterior, x).items():
        metrics.plot_reliability(metrics.reliability(p, y, bins=10), label=name, axes=axes)
    figure.savefig(file, dpi=110)


def probabilities(posterior: Posterior, x: Tensor) -> dict[str, Tensor]:
    last: nn.Module = posterior.network(0, posterior.draws - 1)
    with torch.no_grad():
        return {
            "all networks": posterior.predict(x, keep_samples=False).mean.cpu(),
            "the last one": last(x).softmax(1).cpu(),
        }


def main(argv: list[str] | None = None) -> dict[str, object]:
    options = arguments(argv)
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    found = data.digits()
    posterior = sample(found, options)
    static = torch.rand(500, 64, generator=torch.Generator().manual_seed(options.seed))
    scores = posterior.evaluate(found.test_x, found.test_y, ood=static)
    last = probabilities(posterior, found.test_x)["the last one"]
    alone = {
        "accuracy": metrics.accuracy(last, found.test_y),
        "nll": metrics.nll(last, found.test_y),
        "calibration_error": metrics.expected_calibration_error(last, found.test_y),
    }
    print(
        f"{posterior.draws} networks on test data (out of distribution: static):", scores, sep="\n"
    )
    print(
        f"the last network alone: accuracy {alone['accuracy']:.2%}, NLL {alone['nll']:.4f}, "
        f"calibration error {alone['calibration_error']:.4f}"
    )
    draw(posterior, found.test_x, found.test_y, options.out / "lightning_digits.png")

    results: dict[str, object] = {"scores": vars(scores), "last network": alone}
    results["settings"] = posterior.config
    (options.out / "lightning_digits.json").write_text(json.dumps(results, indent=1))
    return results


def arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("runs/lightning_digits"))
    parser.add_argument("--quick", action="store_true", help="a few seconds; not converged")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(argv)
    options.out.mkdir(parents=True, exist_ok=True)
    return options


if __name__ == "__main__":
    main()
