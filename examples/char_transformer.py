"""A character-level transformer that says how sure it is of every character it writes.

The text beside this file (char_transformer.txt, written for this example) is a tale that repeats
itself, as nursery rhymes do: after "that trimmed the" there is one way to go on, after "this is
the" there are many. One observation is a window of text, and its likelihood the product over all
positions of the probability of the next character. The picture shows text drawn from the
posterior, coloured by the uncertainty about each character.

    python examples/char_transformer.py --out runs/char_transformer
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path

import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import Tensor, nn

from natural_langevin import (
    Langevin,
    Posterior,
    likelihoods,
    metrics,
    preconditioners,
    priors,
    schedules,
)

TEXT = Path(__file__).with_suffix(".txt").read_text(encoding="utf-8")
ALPHABET = sorted(set(TEXT))
WINDOW = 24


def windows() -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """(x, y) for training and testing, (windows, WINDOW) each; y is x one character later.

    The windows do not overlap: an observation must not be counted twice. Every eighth is kept
    for testing."""
    codes = torch.tensor([ALPHABET.index(c) for c in TEXT])
    count = (len(codes) - 1) // WINDOW
    x, y = (codes[s : s + count * WINDOW].reshape(count, WINDOW) for s in (0, 1))
    test = torch.arange(count) % 8 == 7
    return (x[~test], y[~test]), (x[test], y[test])


class Block(nn.Module):
    """Causal self-attention and a two-layer network, each added to its normalised input."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm, self.network_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.queries_keys_values = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.network = nn.Sequential(
            nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        joint = self.queries_keys_values(self.attention_norm(x))
        q, k, v = joint.unflatten(-1, (3, self.heads, -1)).movedim(-3, 0).transpose(-3, -2)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(-3, -2).flatten(-2))
        return x + self.network(self.network_norm(x))


class Transformer(nn.Module):
    def __init__(self, width: int, heads: int, depth: int) -> None:
        super().__init__()
        self.character = nn.Embedding(len(ALPHABET), width)
        self.position = nn.Embedding(WINDOW, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(depth)))
        self.last_norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, len(ALPHABET))

    def forward(self, codes: Tensor) -> Tensor:
        """Logits of the next character at every position: (B, T) to (B, T, characters)."""
        # expand_as gives every sample its own positions: the library's fast rule for embeddings
        # wants the batch axis.
        places = torch.arange(codes.shape[1], device=codes.device).expand_as(codes)
        h = self.blocks(self.character(codes) + self.position(places))
        return self.head(self.last_norm(h))


def sample(train: tuple[Tensor, Tensor], options: argparse.Namespace) -> Posterior:
    torch.manual_seed(options.seed)
    width, depth = (16, 1) if options.quick else (32, 2)
    sampler = Langevin(
        Transformer(width, heads=2, depth=depth),
        likelihoods.Categorical(),
        # The gains of norm layers belong around 1.
        prior={
            "*norm.weight": priors.Gaussian(mean=1.0, variance=0.1),
            "*": priors.Gaussian(variance=0.1),
        },
        preconditioner=preconditioners.QuasiDiagonalFisher(damping=1.0),
        step_size=schedules.polynomial(3e-2, offset=1000),
        chains=2,
        init="fan_in",
        seed=options.seed,
        device=options.device,
        compile=False if options.quick else "auto",
    )
    steps, thin = (32, 2) if options.quick else (1_200, 30)
    return sampler.sample(
        train, steps=steps, batch_size=32, burn_in=steps // 4, thin=thin, progress=False
    )


def bigrams(train: tuple[Tensor, Tensor], test: tuple[Tensor, Tensor]) -> dict[str, float]:
    """The baseline: how often each character followed each, with one imagined count for all."""
    counts = torch.ones(len(ALPHABET), len(ALPHABET))
    counts.index_put_((train[0].flatten(), train[1].flatten()), torch.ones(()), accumulate=True)
    p = (counts / counts.sum(1, keepdim=True))[test[0].flatten()]
    y = test[1].flatten()
    return {"accuracy": metrics.accuracy(p, y), "nll": metrics.nll(p, y)}


def write(posterior: Posterior, prompt: Tensor, length: int, seed: int) -> tuple[str, list, list]:
    """Continues ``prompt`` (WINDOW,): the text, and total and epistemic uncertainty in nats."""
    generator = torch.Generator().manual_seed(seed)
    codes, total, epistemic = prompt.tolist(), [], []
    for _ in range(length):
        context = torch.tensor([codes[-WINDOW:]])
        p = posterior.predict(context, sample_batch=100, keep_samples=False)
        codes.append(int(torch.multinomial(p.mean[0, -1].cpu(), 1, generator=generator)))
        total.append(float(p.total[0, -1]))
        epistemic.append(float(p.epistemic[0, -1]))
    return "".join(ALPHABET[c] for c in codes[WINDOW:]), total, epistemic


def draw(
    prompt: str, text: str, total: list[float], epistemic: list[float], file: Path, columns: int
) -> None:
    """One character per cell, coloured by the entropy of its distribution; newlines as a sign."""
    shown = [(c, None, None) for c in prompt] + list(zip(text, total, epistemic, strict=True))
    rows = math.ceil(len(shown) / columns)
    figure = Figure(figsize=(8, 0.42 * rows * 2 + 0.9), layout="constrained")
    panels = figure.subplots(2, 1)
    titles = (
        "entropy of the next character (nats); grey: the prompt",
        "its epistemic part: what the networks disagree about",
    )
    for axes, title, which in zip(panels, titles, (1, 2), strict=True):
        values = torch.full((rows * columns,), float("nan"))
        for index, cell in enumerate(shown):
            row, column = divmod(index, columns)
            if cell[which] is not None:
                values[index] = cell[which]
            letter, grey = cell[0].replace("\n", "¶"), cell[which] is None
            axes.text(
                column, row, letter, ha="center", va="center", family="monospace", fontsize=9,
                color="0.5" if grey else "k",
            )  # fmt: skip
        image = axes.imshow(
            values.reshape(rows, columns).numpy(), cmap="Reds", vmin=0, aspect="auto"
        )
        image.set_clim(
            0, max(cell[which] or 0 for cell in shown) * 1.3 + 1e-6
        )  # text stays legible
        figure.colorbar(image, ax=axes)
        axes.set_title(title, fontsize=9)
        axes.set_axis_off()
    figure.savefig(file, dpi=100)


def main(argv: list[str] | None = None) -> dict[str, object]:
    options = arguments(argv)
    train, test = windows()
    print(f"{train[0].numel()} characters of {len(ALPHABET)} kinds, in {len(train[0])} windows")
    posterior = sample(train, options)

    scores, baseline = posterior.evaluate(*test), bigrams(train, test)
    print("Next characters in windows kept for testing:", scores, sep="\n")
    print(f"counts of pairs: accuracy {baseline['accuracy']:.2%}, nll {baseline['nll']:.4f}")
    print(posterior.diagnose(test[0][:8]))

    prompt = test[0][-1]
    opening = "".join(ALPHABET[c] for c in prompt)
    text, total, epistemic = write(posterior, prompt, 12 if options.quick else 192, options.seed)
    print(f"--- the prompt, then text drawn from the posterior:\n{opening}|{text}\n---")
    draw(opening, text, total, epistemic, options.out / "char_transformer.png", columns=54)

    results = {"scores": vars(scores), "pairs": baseline, "text": opening + "|" + text}
    results["settings"] = posterior.config
    (options.out / "char_transformer.json").write_text(json.dumps(results, indent=1))
    return results


def arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("runs/char_transformer"))
    parser.add_argument("--quick", action="store_true", help="a few seconds; not converged")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(argv)
    options.out.mkdir(parents=True, exist_ok=True)
    return options


if __name__ == "__main__":
    main()
