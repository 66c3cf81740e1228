"""A Transformers ``Trainer`` whose classification head is sampled, and what it says of odd text.

The sentences are the docstrings of a few modules of Python's own library, and the question is which
module a sentence documents: real text that every installation has. A small DistilBERT, built from a
configuration with random weights (a pretrained one would be loaded here), is first trained as
usual. Then its body is frozen and the head is sampled by ``NaturalLangevin`` in a second
``Trainer``. The picture shows how sure both are of test sentences and of sentences of a module that
neither has seen.

    python examples/transformers_text.py --out runs/transformers_text
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import json
import logging
import re
import zlib
from pathlib import Path

import torch
from matplotlib.figure import Figure
from torch import Tensor
from torch.utils.data import Dataset
from transformers import (
    DistilBertConfig,
    DistilBertForSequenceClassification,
    Trainer,
    TrainingArguments,
)

from natural_langevin import Posterior, likelihoods, metrics, preconditioners, priors
from natural_langevin.integrations.transformers import CollectPosterior, Logits, cross_entropy
from natural_langevin.optim import NaturalLangevin, without_dropout

MODULES = ("statistics", "logging", "decimal", "difflib")
UNSEEN = "email.message"
WORDS, LENGTH = 2000, 24


def sentences(module: str) -> list[str]:
    """The sentences of all docstrings of a module, each once, in order."""
    found = importlib.import_module(module)
    things = [found, *(v for _, v in sorted(vars(found).items()) if inspect.getmodule(v) is found)]
    things += [m for c in things if inspect.isclass(c) for _, m in sorted(vars(c).items())]
    texts = [text for thing in things if isinstance(text := getattr(thing, "__doc__", None), str)]
    parts = [part for text in texts for part in re.split(r"[.:>]\s", " ".join(text.split()))]
    return [part for part in dict.fromkeys(parts) if len(part.split()) >= 4]


def tokens(text: str) -> list[int]:
    """Words by a hash, 1 to WORDS - 1; 0 is padding."""
    words = re.findall(r"[a-z_]+", text.lower())[:LENGTH]
    codes = [1 + zlib.crc32(word.encode()) % (WORDS - 1) for word in words]
    return codes + [0] * (LENGTH - len(codes))


class Sentences(Dataset[dict[str, Tensor]]):
    """What a Trainer wants: a dict of tensors for every index."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"input_ids": self.x[index], "labels": self.y[index]}


def load() -> tuple[Sentences, Sentences, Tensor]:
    """Sentences to learn from, every fifth to test on, and those of another module.

    What reads the same counts once: a test sentence must not have been learned."""
    train, test = [], []
    seen: set[tuple[int, ...]] = set()
    for label, module in enumerate(MODULES):
        for sentence in sentences(module):
            if (codes := tuple(tokens(sentence))) in seen:
                continue
            seen.add(codes)
            (test if len(seen) % 5 == 0 else train).append((codes, label))
    both = [
        Sentences(torch.tensor([x for x, _ in part]), torch.tensor([y for _, y in part]))
        for part in (train, test)
    ]
    odd = torch.tensor([tokens(sentence) for sentence in sentences(UNSEEN)])
    return both[0], both[1], odd


def build(width: int, seed: int) -> Logits:
    torch.manual_seed(seed)
    config = DistilBertConfig(
        vocab_size=WORDS,
        max_position_embeddings=LENGTH,
        dim=width,
        hidden_dim=2 * width,
        n_layers=2,
        n_heads=4,
        num_labels=len(MODULES),
        pad_token_id=0,
    )
    # Sampling replaces dropout, and needs a network whose output is a function of its input.
    return Logits(without_dropout(DistilBertForSequenceClassification(config)))


def trainer(
    network: Logits, train: Sentences, options: argparse.Namespace, **how: object
) -> Trainer:
    steps = how.pop("steps")
    arguments = TrainingArguments(
        output_dir=str(options.out),
        max_steps=steps,
        per_device_train_batch_size=50,
        learning_rate=2e-3,
        max_grad_norm=0.0,  # clipped gradients would not be those of the posterior
        use_cpu=options.device == "cpu",
        save_strategy="no",
        logging_strategy="no",
        report_to=[],
        disable_tqdm=True,
        seed=options.seed,
    )
    return Trainer(network, arguments, train_dataset=train, compute_loss_func=cross_entropy, **how)


def sample(network: Logits, train: Sentences, options: argparse.Namespace) -> Posterior:
    """The posterior of the head: two layers on top of a body that stays as it is."""
    network.model.base_model.requires_grad_(False)
    optimizer = NaturalLangevin(
        network,
        likelihoods.Categorical(),
        num_data=len(train),
        lr=1e-3,
        prior=priors.Gaussian(variance=0.1),
        preconditioner=preconditioners.QuasiDiagonalFisher(damping=1e-3),
        seed=options.seed,
    )
    steps, thin = (40, 4) if options.quick else (3_000, 25)
    constant = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
    collect = CollectPosterior(burn_in=steps // 3, thin=thin)
    how = {"optimizers": (optimizer, constant), "callbacks": [collect]}
    trainer(network, train, options, steps=steps, **how).train()
    return collect.posterior


def draw(sure: dict[str, tuple[Tensor, Tensor]], file: Path) -> None:
    """Histograms of the largest probability: test sentences, and those of the other module."""
    figure = Figure(figsize=(7.5, 3.0), layout="constrained")
    for axes, (name, (known, odd)) in zip(figure.subplots(1, 2), sure.items(), strict=True):
        for p, label in ((known, "test sentences"), (odd, f"sentences of {UNSEEN}")):
            axes.hist(
                p.max(1).values, bins=20, range=(0.25, 1), density=True, alpha=0.6, label=label
            )
        axes.set(title=name, xlabel="how sure it is", yticks=[])
    axes.legend()
    figure.savefig(file, dpi=110)


def main(argv: list[str] | None = None) -> dict[str, object]:
    options = arguments(argv)
    logging.getLogger("transformers").setLevel(logging.ERROR)
    train, test, odd = load()
    network = build(32 if options.quick else 64, options.seed)
    trainer(network, train, options, steps=60 if options.quick else 300).train()
    network.eval()
    with torch.no_grad():
        fitted = [network(x.to(options.device)).softmax(1).cpu() for x in (test.x, odd)]
    posterior = sample(network, train, options)
    scores = posterior.evaluate(test.x, test.y, ood=odd)
    ensemble = [posterior.predict(x, keep_samples=False).mean.cpu() for x in (test.x, odd)]
    alone = {
        "accuracy": metrics.accuracy(fitted[0], test.y),
        "nll": metrics.nll(fitted[0], test.y),
        "calibration_error": metrics.expected_calibration_error(fitted[0], test.y),
    }
    print(f"{len(train)} sentences to learn from, {len(test)} to test on")
    print(f"{posterior.draws} heads (out of distribution: {UNSEEN}):", scores, sep="\n")
    print(
        f"the fitted network: accuracy {alone['accuracy']:.2%}, NLL {alone['nll']:.4f}, "
        f"calibration error {alone['calibration_error']:.4f}"
    )
    shown = {"fitted": tuple(fitted), "sampled head": tuple(ensemble)}
    draw(shown, options.out / "transformers_text.png")

    results: dict[str, object] = {"scores": vars(scores), "fitted network": alone}
    results["settings"] = posterior.config
    (options.out / "transformers_text.json").write_text(json.dumps(results, indent=1))
    return results


def arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("runs/transformers_text"))
    parser.add_argument("--quick", action="store_true", help="a few seconds; not converged")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(argv)
    options.out.mkdir(parents=True, exist_ok=True)
    return options


if __name__ == "__main__":
    main()
