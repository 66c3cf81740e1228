"""Images as chains see them: blurred, set upright, and with labels that may be wrong."""

from __future__ import annotations

import pytest
import torch

from lab.beyond.deskew import deskewed
from lab.beyond.inputs import Inputs, ViewScorer, mapped, views
from natural_langevin.models import mlp

X = torch.rand(5, 36, generator=torch.Generator().manual_seed(0))
Y = torch.tensor([0, 2, 1, 1, 0])


def test_every_chain_sees_the_images_in_its_own_way():
    x, y = X, Y
    inputs = [Inputs(0.8), Inputs(), Inputs(0.8), Inputs(0.8, deskew=1.0)]
    seen = views(x, y, inputs)
    assert len(seen.x) == 15
    for chain, own in enumerate(inputs):
        torch.testing.assert_close(seen.x[seen.rows[chain]], mapped(x, own))
        assert torch.equal(seen.y[seen.rows[chain]], y)
    network = mlp(36, 3, (4,))
    params = {k: p.detach().expand(4, *p.shape) for k, p in network.named_parameters()}
    p = ViewScorer(network, {"scored": (x, y)}, inputs).probabilities(params, x)
    for chain, own in enumerate(inputs):
        expected = network(mapped(x, own)).double().softmax(-1)
        torch.testing.assert_close(p[chain], expected)
    for own in (Inputs(1.0), Inputs(deskew=1.0)):
        with pytest.raises(ValueError, match="square"):
            mapped(torch.zeros(1, 5), own)


def test_every_chain_predicts_with_its_own_share_of_wrong_labels():
    network = mlp(36, 3, (4,))
    x, y = X, Y
    params = {k: p.detach().repeat(2, *[1] * p.ndim) for k, p in network.named_parameters()}
    scorer = ViewScorer(network, {"scored": (x, y)}, [Inputs()] * 2, [0.3, 0.0])
    noisy, plain = scorer.probabilities(params, x)
    torch.testing.assert_close(noisy, 0.7 * plain + 0.1)
    torch.testing.assert_close(plain, network(x).double().softmax(-1))


def slant(image: torch.Tensor) -> float:
    """cov(x, y) / var(y) over an image's brightness, pixel by pixel."""
    places = [(x, y, float(image[y, x])) for y in range(len(image)) for x in range(len(image))]
    total = sum(m for _, _, m in places)
    x0, y0 = (sum(p[k] * p[2] for p in places) / total for k in (0, 1))
    covariance = sum((x - x0) * (y - y0) * m for x, y, m in places)
    return covariance / sum((y - y0) ** 2 * m for _, y, m in places)


def test_deskewed_images_stand_upright():
    image = torch.zeros(15, 15)
    for row in range(3, 12):  # a stroke two pixels wide that leans by .4 of a pixel a row
        image[row, round(4 + 0.4 * row) : round(6 + 0.4 * row)] = 1.0
    assert slant(image) > 0.35
    flat = image.reshape(1, -1)
    upright = deskewed(flat, 1.0)
    assert abs(slant(upright.reshape(15, 15))) < 0.02
    assert slant(deskewed(flat, 0.5).reshape(15, 15)) == pytest.approx(slant(image) / 2, abs=0.02)
    assert upright.dtype == flat.dtype
    assert upright.sum() == pytest.approx(flat.sum().item(), rel=0.01)
    assert deskewed(flat, 0.0) is flat
    torch.testing.assert_close(deskewed(upright, 1.0), upright, atol=0.02, rtol=0)
    # Alone and among others, and with a bright background, it is the same image.
    many = torch.cat([X, X.flip(1)])
    torch.testing.assert_close(
        torch.cat([deskewed(m[None], 1.0) for m in many]), deskewed(many, 1.0)
    )
    torch.testing.assert_close(deskewed(flat + 3, 1.0), upright + 3)
    single = torch.zeros(1, 225)
    single[0, 60:65] = 1.0  # one bright row: nothing to set upright
    torch.testing.assert_close(deskewed(single, 1.0), single)
