"""results.json -> one self-contained HTML page. Reads numbers only; touches no model.

    schema -> summary, claims, table, charts, heatmap, reliability, digits -> page -> templates/

Every builder turns a part of the results into plain values; only the templates write markup, and
they escape all of it.
"""

from natural_langevin.report.markdown import markdown_table
from natural_langevin.report.page import render, write_report
from natural_langevin.report.schema import FORMAT, ResultsError, load_results

__all__ = ["FORMAT", "ResultsError", "load_results", "markdown_table", "render", "write_report"]
