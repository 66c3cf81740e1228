"""The images that the ensemble is least sure of: a PNG of the pixels, and the probabilities."""

from __future__ import annotations

import base64
import dataclasses
import io
from collections.abc import Mapping, Sequence
from typing import Any

from natural_langevin._internal.extras import needing
from natural_langevin.cli.pages import text

BAR, HEIGHT = 14, 46  # width of one class, height of a bar of probability 1


@dataclasses.dataclass(frozen=True)
class Bar:
    """The probability of one class."""

    name: str
    x: float
    height: float
    percent: str
    true: bool


@dataclasses.dataclass(frozen=True)
class Digit:
    """One image with its label and what the ensemble says."""

    index: int
    label: int
    source: str
    predicted: int
    percent: str
    total: str
    share: str  # of the uncertainty, what the weights account for
    bars: list[Bar]
    width: int
    description: str
    height: int = HEIGHT
    bar: int = BAR


def digits(items: Sequence[Mapping[str, Any]]) -> list[Digit]:
    """In the order of the results: most uncertain first."""
    return [_digit(item) for item in items if item["probabilities"]]


def _digit(item: Mapping[str, Any]) -> Digit:
    p, total, epistemic = item["probabilities"], item["total"], item["epistemic"]
    predicted = max(range(len(p)), key=p.__getitem__)
    known = text.finite(total) and text.finite(epistemic) and total > 0
    bars = [
        Bar(
            name=str(k),
            x=k * BAR,
            height=round(HEIGHT * min(1.0, max(0.0, q)), 1),
            percent=text.percent(100 * q, 1),
            true=k == item["label"],
        )
        for k, q in enumerate(p)
    ]
    likely = sorted(bars, key=lambda bar: -bar.height)[:3]
    return Digit(
        index=item["index"],
        label=item["label"],
        source="data:image/png;base64,"
        + base64.b64encode(png(item["width"], item["height"], bytes(item["pixels"]))).decode(),
        predicted=predicted,
        percent=text.percent(100 * p[predicted], 0),
        total=text.number(total, 2),
        share=text.percent(100 * epistemic / total, 0) if known else "",
        bars=bars,
        width=len(p) * BAR,
        description="Probabilities: " + ", ".join(f"{b.name} {b.percent}" for b in likely) + ".",
    )


def png(width: int, height: int, pixels: bytes) -> bytes:
    """An 8-bit grey PNG of row-major pixels."""
    with needing("pictures need matplotlib, which brings pillow", "report"):
        from PIL import Image
    if len(pixels) != width * height:
        raise ValueError(f"{width} x {height} pixels, and there are {len(pixels)}")
    content = io.BytesIO()
    Image.frombytes("L", (width, height), pixels).save(content, format="png", optimize=True)
    return content.getvalue()
