"""The images that the ensemble is least sure of: a PNG of the pixels, and the probabilities."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from typing import Any

from natural_langevin._internal.extras import needing
from natural_langevin.cli.pages import text


def digits(items: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """In the order of the results, most uncertain first: each with its image (``source``), the
    class that was ``predicted``, the ``share`` of the uncertainty that the weights account for, and
    a ``description`` of the probabilities."""
    return [_digit(item) for item in items if item["probabilities"]]


def _digit(item: Mapping[str, Any]) -> dict[str, Any]:
    p, total, epistemic = item["probabilities"], item["total"], item["epistemic"]
    image = base64.b64encode(png(item["width"], item["height"], bytes(item["pixels"])))
    known = text.finite(total) and text.finite(epistemic) and total > 0
    order = sorted(range(len(p)), key=lambda k: -p[k])
    likely = ", ".join(f"{k} {text.percent(100 * p[k], 1)}" for k in order[:3])
    return {
        **item,
        "source": f"data:image/png;base64,{image.decode()}",
        "predicted": order[0],
        "share": 100 * epistemic / total if known else None,
        "description": f"Probabilities: {likely}.",
    }


def png(width: int, height: int, pixels: bytes) -> bytes:
    """An 8-bit grey PNG of row-major pixels."""
    with needing("pictures need matplotlib, which brings pillow", "report"):
        from PIL import Image
    if len(pixels) != width * height:
        raise ValueError(f"{width} x {height} pixels, and there are {len(pixels)}")
    content = io.BytesIO()
    Image.frombytes("L", (width, height), pixels).save(content, format="png", optimize=True)
    return content.getvalue()
