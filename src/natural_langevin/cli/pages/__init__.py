"""Report: results.json, or a saved posterior's JSON, as one self-contained HTML page.

Imports nothing but tools, and touches no model; cli imports it.

Builders turn the results into plain values, matplotlib draws, and only the templates write words.
"""

from natural_langevin.cli.pages.page import render, write_report
from natural_langevin.cli.pages.posterior import render_posterior, write_posterior_report
from natural_langevin.cli.pages.schema import FORMAT, ResultsError, load_results

__all__ = [
    "FORMAT",
    "ResultsError",
    "load_results",
    "render",
    "render_posterior",
    "write_posterior_report",
    "write_report",
]
