"""The callback in a Transformers Trainer, with models built from a configuration."""

import importlib
import sys

import pytest
import torch
from torch.nn import functional as F
from torch.utils.data import Dataset

from natural_langevin import likelihoods
from natural_langevin.optim import NaturalLangevin, without_dropout
from natural_langevin.posterior.storage import StorageError

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:torch.utils.data")
CLASSES, COUNT = 3, 48


@pytest.fixture(autouse=True, scope="module")
def _quiet() -> None:
    """Slow to import, so in the process that runs these tests alone."""
    import transformers

    transformers.logging.set_verbosity_error()


class Sentences(Dataset):
    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        self.x = torch.randint(1, 50, (COUNT, 8), generator=generator)
        self.y = self.x[:, 0] % CLASSES
        self.x[::2, 5:] = 0  # padding

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index):
        return {"input_ids": self.x[index], "labels": self.y[index]}


def distilbert(*, head_alone: bool = True):
    import transformers

    from natural_langevin.integrations.transformers import Logits

    torch.manual_seed(0)
    config = transformers.DistilBertConfig(
        vocab_size=50, dim=16, hidden_dim=16, n_layers=1, n_heads=2, max_position_embeddings=8,
        num_labels=CLASSES, pad_token_id=0,
    )  # fmt: skip
    model = transformers.DistilBertForSequenceClassification(config)
    if head_alone:
        model.base_model.requires_grad_(False)
    return Logits(without_dropout(model))


def gpt2():
    import transformers

    from natural_langevin.integrations.transformers import Logits

    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=50, n_embd=8, n_layer=1, n_head=2, n_positions=8, num_labels=CLASSES,
        pad_token_id=0, bos_token_id=1, eos_token_id=1, attn_implementation="eager",
        use_cache=False,
    )  # fmt: skip
    return Logits(without_dropout(transformers.GPT2ForSequenceClassification(config)))


def train(folder, steps: int, network=None, resume: bool = False, **options):
    import transformers

    from natural_langevin.integrations.transformers import CollectPosterior, cross_entropy

    network = network or distilbert()
    optimizer = NaturalLangevin(network, likelihoods.Categorical(), num_data=COUNT, lr=1e-4)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 3)
    collect = CollectPosterior(burn_in=1, thin=2)
    arguments = transformers.TrainingArguments(
        output_dir=str(folder), max_steps=steps, save_steps=4, max_grad_norm=0.0, use_cpu=True,
        logging_strategy="no", report_to=[], disable_tqdm=True,
        **{"per_device_train_batch_size": 8, **options},
    )  # fmt: skip
    trainer = transformers.Trainer(
        network,
        arguments,
        train_dataset=Sentences(),
        optimizers=(optimizer, schedule),
        callbacks=[collect],
        compute_loss_func=cross_entropy,
    )
    trainer.train(resume_from_checkpoint=resume)
    return collect


def same(one, other) -> bool:
    return all(torch.equal(v, other.samples[k]) for k, v in one.samples.items())


def test_a_resumed_run_continues_the_same_chain(tmp_path):
    whole = train(tmp_path / "whole", 7)
    first = train(tmp_path / "part", 4)
    assert first.kept == [3]
    rest = train(tmp_path / "part", 7, resume=True)
    assert rest.kept == whole.kept == [3, 5, 7]
    assert same(whole.posterior, rest.posterior)

    # Samples that are not there are no reason to begin with none.
    (tmp_path / "part" / "checkpoint-7" / "langevin_samples.safetensors").write_bytes(b"nonsense")
    with pytest.raises(StorageError, match=r"CollectPosterior\(checkpoint=FOLDER\)"):
        train(tmp_path / "part", 9, resume=True)


def test_the_head_is_sampled_and_the_posterior_predicts(tmp_path):
    collect = train(tmp_path, 3, save_strategy="no")
    posterior, x = collect.posterior, Sentences().x
    assert set(posterior.samples) == {
        f"model.{name}.{kind}"
        for name in ("pre_classifier", "classifier")
        for kind in ("weight", "bias")
    }
    p = posterior.predict(x)
    assert p.mean.shape == (COUNT, CLASSES)
    # The ensemble of one draw is that draw, its padding masked.
    network = posterior.network(0, 0)
    with torch.no_grad():
        torch.testing.assert_close(p.mean, network(x).softmax(1))
        longer = F.pad(x[:1, :5], (0, 2))
        torch.testing.assert_close(network(longer), network(x[:1, :5]))


def test_accumulated_batches_are_one_larger_batch(tmp_path):
    parts = train(
        tmp_path,
        3,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        save_strategy="no",
    )
    large = train(tmp_path, 3, save_strategy="no")
    for name, value in parts.posterior.samples.items():
        torch.testing.assert_close(value, large.posterior.samples[name], rtol=1e-3, atol=1e-5)


def test_all_of_gpt2_is_sampled(tmp_path):
    """Its Conv1D layers have no rule: their per-sample gradients are found by replay."""
    collect = train(tmp_path, 1 + 2, gpt2(), save_strategy="no")
    before = dict(gpt2().named_parameters())
    for name, value in collect.posterior.samples.items():
        assert bool(torch.isfinite(value).all())
        assert not torch.equal(value[0, 0], before[name])
    assert set(collect.posterior.samples) == set(before)


def test_all_of_distilbert_is_sampled(tmp_path):
    """Its positions have no batch axis: their gradients come from the network, sample by sample."""
    network = distilbert(head_alone=False)
    collect = train(tmp_path, 3, network, save_strategy="no")
    assert set(collect.posterior.samples) == set(dict(network.named_parameters()))


def test_a_missing_package_is_named(monkeypatch):
    importlib.import_module("natural_langevin.integrations.transformers")
    monkeypatch.setitem(sys.modules, "transformers", None)
    monkeypatch.delitem(sys.modules, "natural_langevin.integrations.transformers")
    with pytest.raises(ImportError, match=r"natural-langevin\[transformers\]"):
        importlib.import_module("natural_langevin.integrations.transformers")
