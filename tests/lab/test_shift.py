"""Shifted and foreign images: what the shifts do to an image, and the comparison at toy size."""

import dataclasses
import json
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from lab.shift import table
from lab.shift.corruptions import STRENGTHS, corrupted, rotated
from lab.shift.methods import METHODS, Settings
from lab.shift.run import ShiftError, foreign_images, run, uncertainty
from natural_langevin import data

TOY = Settings(steps=8, chains=2, batch_size=20, hidden=(8,), members=4, images=40)


def picture() -> torch.Tensor:
    """One image of 8 x 8 with a bright line off the middle."""
    image = torch.zeros(1, 8, 8)
    image[0, 2, 1:7] = 1.0
    return image.flatten(1)


def test_a_quarter_turn_is_the_transposed_and_mirrored_image() -> None:
    image = picture().reshape(1, 1, 8, 8)
    assert torch.allclose(rotated(image, 90), image.rot90(1, (2, 3)), atol=1e-5)


@pytest.mark.parametrize("kind", STRENGTHS)
def test_every_strength_goes_further_and_stays_an_image(kind: str) -> None:
    x = picture().expand(50, -1)
    changes = [float((corrupted(x, kind, s) - x).abs().mean()) for s in range(1, 6)]
    assert changes[0] > 0
    assert all(b > a for a, b in pairwise(changes))
    strongest = corrupted(x, kind, 5)
    assert strongest.min() >= -1e-6
    assert strongest.max() <= 1 + 1e-6
    assert torch.equal(strongest, corrupted(x, kind, 5))


@pytest.mark.parametrize("kind", STRENGTHS)
def test_colours_are_shifted_alike(kind: str) -> None:
    """A grey image in colour is what the grey image is; noise is drawn colour by colour."""
    grey = picture()
    shifted = corrupted(grey.reshape(1, 8, 8, 1).expand(-1, -1, -1, 3), kind, 3)
    assert shifted.shape == (1, 8, 8, 3)
    if kind != "noise":
        for colour in shifted.unbind(-1):
            assert torch.allclose(colour.flatten(1), corrupted(grey, kind, 3), atol=1e-6)


def test_blur_keeps_the_light_of_an_image_away_from_its_border() -> None:
    x = torch.zeros(1, 15 * 15)
    x[0, 7 * 15 + 7] = 1.0
    assert float(corrupted(x, "blur", 2).sum()) == pytest.approx(1.0, abs=1e-5)


def test_an_unknown_shift_is_refused() -> None:
    with pytest.raises(ValueError, match="strength from 1 to 5"):
        corrupted(picture(), "blur", 6)


def test_networks_that_agree_have_no_epistemic_uncertainty() -> None:
    p = torch.tensor([[[0.5, 0.5]], [[0.5, 0.5]]])
    total, epistemic = uncertainty(p)
    assert float(total) == pytest.approx(0.6931, abs=1e-4)
    assert float(epistemic) == pytest.approx(0.0, abs=1e-6)
    apart = uncertainty(torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]]))[1]
    assert float(apart) == pytest.approx(0.6931, abs=1e-4)


def test_every_method_at_toy_size_and_going_on(tmp_path: Path) -> None:
    digits, out, said = data.digits(), tmp_path / "s.json", []
    options = {"settings": TOY, "foreign": ["shuffled"], "say": said.append}
    run(digits, out, names=["ensemble"], **options)
    results = run(digits, out, **options)
    assert len(said) == len(METHODS), "what was done is not done again"
    assert json.loads(out.read_text()) == results
    for row in results["rows"].values():
        assert {kind: len(found) for kind, found in row["shifts"].items()} == dict.fromkeys(
            STRENGTHS, 5
        )
        assert 0 <= row["foreign"]["shuffled"]["epistemic"] <= 1
    assert results["rows"]["single"]["foreign"]["shuffled"]["epistemic"] == 0.5
    with pytest.raises(ShiftError, match="other settings"):
        run(digits, out, settings=dataclasses.replace(TOY, seed=1), foreign=["shuffled"])
    table.plot(results, tmp_path / "s.png")
    assert (tmp_path / "s.png").stat().st_size > 1000
    page = table.with_table("before\n<!-- shift:begin -->\n<!-- shift:end -->after", results)
    assert page.count("| MC dropout |") == 1


def test_shuffled_images_have_the_same_brightness() -> None:
    x = torch.rand(5, 64, generator=torch.Generator().manual_seed(0))
    found = foreign_images("shuffled", x, None)
    assert torch.allclose(found.sum(1), x.sum(1), atol=1e-5)
    assert not torch.equal(found, x)
    with pytest.raises(ShiftError, match="choose from"):
        foreign_images("imagenet", x, None)
