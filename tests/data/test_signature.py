"""Inputs as people have them: each with nothing said but the data, then used for predictions."""

from __future__ import annotations

import collections
import dataclasses

import pandas as pd
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import ChainDataset, DataLoader, Dataset, Subset, TensorDataset

from natural_langevin import Langevin, Posterior, likelihoods
from natural_langevin.data.signature import Signature
from short_recipe import SHORT

RUN = {"steps": 16, "batch_size": 20, "progress": False}


def rows(count: int = 60) -> tuple[Tensor, Tensor, Tensor]:
    """Real inputs, indices and labels."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(count, 3, generator=generator)
    index = torch.randint(0, 5, (count,), generator=generator)
    return x, index, (x[:, 0] + 0.3 * index > 0.6).long()


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(1)
        self.table, self.out = nn.Embedding(5, 2), nn.Linear(5, 2)
        for p in self.parameters():
            nn.init.normal_(p, std=0.3, generator=generator)

    def forward(self, x: Tensor, index: Tensor) -> Tensor:
        return self.out(torch.cat([x, self.table(index)], -1))


def sampled(data: object, model: nn.Module | None = None, **options: object) -> Posterior:
    """A step size is said, since choosing one takes seconds; ``test_nothing_said`` says none."""
    sampler = Langevin(model or TwoInputs(), likelihoods.Categorical(), step_size=0.01, chains=2)
    return sampler.sample(data, **(RUN | options))  # type: ignore[arg-type]


class Rows(Dataset):
    """Samples as dictionaries, with a text that no network takes."""

    def __len__(self) -> int:
        return 60

    def __getitem__(self, row: int) -> dict[str, object]:
        x, index, y = rows()
        return {"x": x[row], "index": index[row], "labels": y[row], "text": "a"}


def test_every_way_of_giving_several_inputs_is_the_same_run() -> None:
    x, index, y = rows()
    first = sampled(((x, index), y))
    others = [
        sampled((x, index, y)),
        sampled(TensorDataset(x, index, y)),
        sampled(Subset(TensorDataset(x, index, y), range(60))),
        sampled(Rows()),
        sampled(({"x": x, "index": index}, y)),
        sampled({"x": x, "index": index, "labels": y}),
        sampled(collections.UserDict(index=index.numpy(), x=x.numpy(), y=y.numpy())),
    ]
    for other in others:
        assert torch.equal(other.samples["out.weight"], first.samples["out.weight"])
    wanted = first.predict((x, index)).mean
    assert wanted.shape == (60, 2)
    by_hand = torch.stack(
        [first.network(c, d)(x, index).softmax(-1) for c in range(2) for d in range(first.draws)]
    ).mean(0)
    torch.testing.assert_close(wanted, by_hand)
    for inputs in ({"x": x, "index": index}, Rows(), TensorDataset(x, index, y)):
        assert torch.equal(others[-1].predict(inputs).mean, wanted)
    loader = DataLoader(TensorDataset(x, index, y), batch_size=25)
    torch.testing.assert_close(first.predict(loader).mean, wanted)
    scores = first.evaluate((x, index), y)
    assert scores.nll < 1
    assert first.log_likelihood({"x": x, "index": index}, y).shape == (2, first.draws, 60)


def test_nothing_said() -> None:
    """Pilot and trial of the prior's scale see the inputs as the run does."""
    x, index, y = rows()
    sampler = Langevin(TwoInputs(), likelihoods.Categorical(), chains=2, recipe=SHORT)
    found = sampler.sample((x.numpy(), index.numpy(), y.numpy()), **RUN)  # type: ignore[arg-type]
    assert "prior" in found.plan.reasons
    assert found.evaluate((x, index), y).accuracy > 0.7


@pytest.mark.parametrize("dataset", [Rows(), TensorDataset(*rows())], ids=["dict", "tuple"])
def test_loaders_of_several_inputs(dataset: Dataset) -> None:
    found = sampled(DataLoader(dataset, batch_size=20, shuffle=True), batch_size=None)
    assert found.config["num_data"] == 60
    assert found.predict(tuple(rows()[:2])).mean.shape == (60, 2)


def test_a_saved_posterior_takes_them_too(tmp_path) -> None:
    class Summed(nn.Module):
        """Any number of inputs: what they are is in the configuration alone."""

        def __init__(self) -> None:
            super().__init__()
            self.out = nn.Linear(3, 2)

        def forward(self, *inputs: Tensor) -> Tensor:
            return self.out(torch.stack(inputs).sum(0))

    x, _, y = rows()
    model = Summed()
    found = sampled(((x, x), y), model)
    found.save(tmp_path / "posterior")
    again = Posterior.load(tmp_path / "posterior", model)
    assert torch.equal(again.predict((x, x)).mean, found.predict((x, x)).mean)


@dataclasses.dataclass
class Output:
    logits: Tensor
    hidden: Tensor


NamedOutput = collections.namedtuple("NamedOutput", "loss logits")


class Wrapped(nn.Module):
    def __init__(self, wrap) -> None:
        super().__init__()
        self.out, self.wrap = nn.Linear(3, 2), wrap
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)

    def forward(self, x: Tensor) -> object:
        return self.wrap(self.out(x))


@pytest.mark.parametrize(
    "wrap",
    [
        lambda o: {"logits": o, "hidden": o + 1},
        lambda o: {"anything": o},
        lambda o: Output(o, o + 1),
        lambda o: NamedOutput(None, o),
    ],
    ids=["dict", "one", "object", "named"],
)
def test_outputs_that_hold_logits(wrap) -> None:
    x, _, y = rows()
    plain, other = (sampled((x, y), Wrapped(w)) for w in (lambda o: o, wrap))
    torch.testing.assert_close(plain.predict(x).mean, other.predict(x).mean, atol=1e-4, rtol=1e-3)
    assert other.evaluate(x, y).accuracy == plain.evaluate(x, y).accuracy


def test_outputs_that_hold_no_logits_are_refused_with_the_remedy() -> None:
    x, _, y = rows()
    with pytest.raises(TypeError, match=r"a dict of \['a', 'b'\].*LogLoss"):
        sampled((x, y), Wrapped(lambda o: {"a": o, "b": o}))
    with pytest.raises(TypeError, match="output is a tuple"):
        sampled((x, y), Wrapped(lambda o: (o, o)))


def test_a_log_loss_sees_outputs_as_they_are() -> None:
    x, _, y = rows()
    loss = likelihoods.LogLoss(
        lambda o, y: nn.functional.cross_entropy(o["a"], y, reduction="none")
    )
    model = Wrapped(lambda o: {"a": o, "b": o})
    sampler = Langevin(model, loss, step_size=0.01, chains=2)
    assert sampler.sample((x, y), **RUN).draws > 0  # type: ignore[arg-type]


def test_frames_arrays_and_tensors_are_the_same_data() -> None:
    x, index, y = rows()
    model = Wrapped(lambda o: o)
    wanted = sampled((x, y), model)
    frame = pd.DataFrame(x.double().numpy(), columns=["a", "b", "c"])
    for data in [
        (frame, pd.Series(y.numpy())),
        (frame, pd.DataFrame({"y": y.numpy().astype("int8")})),
        (x.double().numpy(), y.numpy().astype(float)),
        (x.numpy(), y.numpy() == 1),
    ]:
        assert torch.equal(sampled(data, model).samples["out.bias"], wanted.samples["out.bias"])
    assert torch.equal(wanted.predict(frame).mean, wanted.predict(x).mean)
    assert wanted.evaluate(frame, pd.Series(y.numpy())).nll == wanted.evaluate(x, y).nll
    # Whole numbers, nullable ones and flags: real inputs of a linear layer, indices of a table.
    counts = pd.DataFrame({"a": index.numpy(), "b": index.numpy() > 2, "c": [1] * 60})
    counts["a"] = counts["a"].astype("Int64")
    assert sampled((counts, y.numpy()), model).predict(counts).mean.shape == (60, 2)
    table = nn.Sequential(nn.Embedding(5, 4), nn.Flatten(), nn.Linear(4, 2))
    assert sampled((index.numpy()[:, None], y.numpy()), table).draws > 0


def test_whole_numbers_are_targets_of_a_regression_too() -> None:
    x, index, _ = rows()
    gaussian = likelihoods.Gaussian(sigma=1.0)
    sampler = Langevin(nn.Linear(3, 1), gaussian, step_size=0.01, chains=2)
    found = sampler.sample((x.numpy(), index.numpy()), **RUN)  # type: ignore[arg-type]
    assert found.evaluate(x.numpy(), index.numpy()).rmse < 5


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (
            lambda x, i, y: (pd.DataFrame({"a": ["u"] * 60, "b": x[:, 0]}), y),
            r"\['a'\] are not num",
        ),
        (lambda x, i, y: (x, pd.Series(["u", "v"] * 30)), "encode its classes"),
        (lambda x, i, y: {"x": x, "index": i}, "needs its targets under one of"),
        (lambda x, i, y: ((x, i[:10]), y), "same number of samples"),
        (lambda x, i, y: ((x, i + 2**25), y), "beyond 16777216"),
        (lambda x, i, y: (x, i, y.float(), y), "forward takes"),
        (lambda x, i, y: ({"x": ["a"] * 60, "index": i}, y), r"\['x'\] are not tensors"),
        (
            lambda x, i, y: [(x[0], i[0], y[0])] * 60,
            r"got list of 60 \['tuple'\].*DataLoader\(rows",
        ),
        (lambda x, i, y: ChainDataset([]), r"give DataLoader\(dataset\)"),
        (lambda x, i, y: Subset(TensorDataset(x, i, y), []), "the dataset is empty"),
    ],
)
def test_what_cannot_be_taken_is_refused_with_the_remedy(data, said: str) -> None:
    with pytest.raises((TypeError, ValueError), match=said):
        sampled(data(*rows()))


def test_packing_is_undone_exactly() -> None:
    generator = torch.Generator().manual_seed(0)

    class Three(nn.Linear):
        def forward(self, image: Tensor, mask: Tensor, ids: Tensor) -> Tensor:
            raise NotImplementedError

    signature = Signature(Three(1, 1))
    image = torch.randn(4, 2, 3, generator=generator)
    mask = torch.rand(4, 5, generator=generator) > 0.5
    ids = torch.randint(0, 2**24, (4,), generator=generator)
    args, kwargs = signature.arguments(signature.inputs((image, mask, ids)))
    assert not args
    for found, wanted in zip(kwargs.values(), (image, mask, ids), strict=True):
        assert torch.equal(found, wanted)
        assert found.dtype == wanted.dtype


def test_a_transformer_with_padded_batches() -> None:
    """A Hugging Face classifier: dictionaries in, an output object out, lengths that differ."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=20, hidden_size=8, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=8, max_position_embeddings=16, num_labels=2,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    model = transformers.BertForSequenceClassification(config).eval()
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(3, 8, (40,), generator=generator).tolist()
    samples = [
        {"input_ids": torch.randint(1, 20, (n,), generator=generator), "labels": n % 2}
        for n in lengths
    ]

    def padded(batch: list[dict[str, object]]) -> dict[str, Tensor]:
        ids = nn.utils.rnn.pad_sequence([s["input_ids"] for s in batch], batch_first=True)
        labels = torch.tensor([s["labels"] for s in batch])
        return {"input_ids": ids, "attention_mask": (ids > 0).long(), "labels": labels}

    for parameter in model.bert.parameters():
        parameter.requires_grad_(False)
    loader = DataLoader(samples, batch_size=10, shuffle=True, collate_fn=padded)  # type: ignore[arg-type]
    sampler = Langevin(model, likelihoods.Categorical(), step_size=1e-3, chains=2)
    found = sampler.sample(loader, steps=6, progress=False)
    batch = padded(samples)
    wanted = torch.stack(
        [
            found.network(c, d)(batch["input_ids"], batch["attention_mask"]).logits.softmax(-1)
            for c in range(2)
            for d in range(found.draws)
        ]
    ).mean(0)
    given = {k: v for k, v in batch.items() if k != "labels"}
    torch.testing.assert_close(found.predict(given).mean, wanted, atol=1e-5, rtol=1e-4)
    assert len(found.predict(DataLoader(samples, batch_size=7, collate_fn=padded)).mean) == 40  # type: ignore[arg-type]
