"""results.json, or a saved posterior's JSON -> one self-contained HTML page. Touches no model.

    schema -> summary, claims, table, charts, heatmap, reliability, digits -> page -> templates/
    posterior (charts, reliability, histogram) -> templates/

Every builder turns a part of the results into plain values; only the templates write markup, and
they escape all of it.
"""

from natural_langevin.report.markdown import markdown_table
from natural_langevin.report.page import render, write_report
from natural_langevin.report.posterior import render_posterior, write_posterior_report
from natural_langevin.report.schema import FORMAT, ResultsError, load_results

__all__ = [
    "FORMAT",
    "ResultsError",
    "load_results",
    "markdown_table",
    "render",
    "render_posterior",
    "write_posterior_report",
    "write_report",
]
