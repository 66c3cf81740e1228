"""The page: every section that the results can fill, through the templates, onto the disk."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from natural_langevin._internal.atomic import write_output
from natural_langevin._internal.extras import needing
from natural_langevin._internal.messages import visible
from natural_langevin.cli.pages import charts, digits, heatmap, schema, summary, text
from natural_langevin.cli.pages.charts import hues
from natural_langevin.cli.pages.summary import claims
from natural_langevin.cli.pages.table import table

if TYPE_CHECKING:
    from jinja2 import Environment

SECTIONS = {  # name of the section -> its heading, in the order of the page
    "rows": "Results",
    "claims": "Claims of the paper",
    "deviations": "Departures from the paper",
    "curves": "Training",
    "selection": "Choice of hyper-parameters",
    "reliability": "Calibration",
    "ensemble_size": "Ensemble size",
    "ess": "Effective sample size",
    "uncertain": "Where it is unsure",
    "about": "About this run",
}


def render(results: dict[str, Any]) -> str:
    """One HTML document: no script, no font, no image from anywhere else."""
    schema.check(results)
    with schema.showing("the results cannot be shown", schema.REMEDY):
        values = _values(results)
        sections = {key: title for key, title in SECTIONS.items() if values.get(key)}
        return environment().get_template("page.html").render(**values, sections=sections)


def write_report(results: dict[str, Any], path: str | os.PathLike[str]) -> None:
    """Write the page under its name whole, or leave what was there."""
    write_output(path, render(results).encode("utf-8"))


def _values(results: dict[str, Any]) -> dict[str, Any]:
    """Everything the templates show, by section; an empty section is left out of the page."""
    config, rows = results["config"], results["rows"]
    listed = ("curves", "reliability", "ensemble_size", "ess")
    colour = hues(item["method"] for key in ("rows", *listed) for item in results.get(key) or ())
    curves, sizes = results.get("curves"), results.get("ensemble_size")
    return {
        "title": f"Natural Langevin dynamics on {text.dataset(config)}",
        "eyebrow": f"Reproduction report · {config['name']} preset",
        "machine": summary.machine(results),
        "created": results["created"],
        "date": text.date(results["created"]),
        "summary": summary.paragraph(results),
        "figures": summary.figures(results),
        "rows": table(rows, colour) if rows else None,
        "claims": claims(rows),
        "deviations": results.get("deviations") or [],
        "curves": charts.curves(curves, colour) if curves else None,
        "selection": heatmap.grids(results.get("selection") or ()),
        "reliability": charts.diagrams(results.get("reliability") or (), colour),
        "ensemble_size": charts.sizes(sizes, colour) if sizes else None,
        "ess": [_draws(item, colour[item["method"]]) for item in results.get("ess") or ()],
        "uncertain": digits.digits(results.get("uncertain") or ()),
        "about": _about(results),
        "command": _command(config),
    }


def _draws(item: Mapping[str, Any], hue: str) -> dict[str, Any]:
    draws, ess = item["draws"], item["ess"]
    share = 100 * ess / draws if text.finite(ess) and draws > 0 else None
    bar = round(min(100.0, max(0.0, share or 0.0)), 1)  # antithetic draws exceed 100 %
    return {**item, "hue": hue, "share": share, "bar": bar}


def _about(results: Mapping[str, Any]) -> list[tuple[str, list[tuple[str, str]]]]:
    origin = {"natural_langevin": results["version"], "commit": results.get("commit")}
    groups = (
        ("Configuration", {k: v for k, v in results["config"].items() if k != "deviations"}),
        ("Machine", results["machine"]),
        ("Versions", {**origin, **results["versions"]}),
    )
    return [(title, [(str(k), plain(v)) for k, v in group.items()]) for title, group in groups]


def plain(value: Any) -> str:
    """A value of the configuration as text: JSON, a dash for null."""
    if value is None:
        return text.NOTHING
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _command(config: Mapping[str, Any]) -> str:
    words = ["natural-langevin", "reproduce", "--preset", config["name"]]
    return shlex.join([*words, "--data", config["dataset"]])


@cache
def environment() -> Environment:
    """Jinja over the package's templates: everything escaped, an unknown name an error."""
    with needing("the report needs jinja2", "report"):
        from jinja2 import Environment, PackageLoader, StrictUndefined
        from markupsafe import Markup
    found = Environment(
        loader=PackageLoader("natural_langevin.cli.pages"),
        autoescape=True,
        # Control characters of what users named are written out; only charts are Markup.
        finalize=lambda v: visible(v) if isinstance(v, str) and not isinstance(v, Markup) else v,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.tests["finite"] = text.finite
    for name in ("duration", "number", "percent", "plus_minus", "raw", "short", "signed"):
        found.filters[name] = getattr(text, name)
    return found
