"""Tests that fail today, each with what is known of it.

They run, and are listed as expected failures in every summary; whoever mends one deletes its row.
"""

from __future__ import annotations

#: The beginning of a test's id -> why.
KNOWN = {
    "tests/data/test_loaders.py::test_workers_and_collate": "failed under load, not looked at",
    "tests/distributed/test_parallel.py": "keys of the configuration moved; pooling by choice",
    "tests/docs/test_command_line.py": "folders of the recipe's checkpoints; mended, not seen",
    "tests/docs/test_examples.py": "warnings of the tables' candidates in docs/tabular.md",
    "tests/docs/test_site.py": "public names and links of new pages, not seen since the merges",
    "tests/experiments/speed": "the benchmark against peers, not looked at",
    "tests/law/test_linear_regression.py::test_sample_walks": "the metric freezes elsewhere",
    "tests/optim/test_statistics.py::test_activations_go": "the check of the loss keeps a pass",
    "tests/sklearn_estimators": "the recipe of tables changed last; the comparison is older",
    "tests/tabular": "the recipe of tables changed last",
    "tests/cli": "the recipe of tables changed last",
}

#: Not run as a whole since the branches of this round were merged: to be seen, then deleted here.
UNSEEN = (
    "tests/data/test_digits.py",
    "tests/data/test_subsets.py",
    "tests/data/test_table_fuzzing.py",
    "tests/diagnostics/test_configurational.py",
    "tests/diagnostics/test_function_space.py",
    "tests/diagnostics/test_limits.py",
    "tests/distributed/test_group.py",
    "tests/docs/test_notebooks.py",
    "tests/docs/test_scale.py",
    "tests/docs/test_tables.py",
    "tests/examples/test_examples.py",
    "tests/execution/test_native_build.py",
    "tests/execution/test_ways.py",
    "tests/experiments/test_runner.py",
    "tests/experiments/test_sbc.py",
    "tests/experiments/test_uci.py",
    "tests/integrations/test_lightning.py",
    "tests/integrations/test_transformers.py",
    "tests/law/test_adaptive_metric.py",
    "tests/law/test_adjusted.py",
    "tests/law/test_dynamics.py",
    "tests/law/test_fast_path.py",
    "tests/law/test_heat.py",
    "tests/law/test_logistic_nuts.py",
    "tests/law/test_metric_order.py",
    "tests/law/test_normal_inverse_gamma.py",
    "tests/law/test_posteriordb.py",
    "tests/law/test_prior_only.py",
    "tests/law/test_thermostat.py",
    "tests/likelihoods/test_mixtures.py",
    "tests/metrics/test_classification.py",
    "tests/metrics/test_conformal.py",
    "tests/metrics/test_evaluate.py",
    "tests/metrics/test_stacking.py",
    "tests/optim/test_collector.py",
    "tests/optim/test_loss_check.py",
    "tests/optim/test_sharded.py",
    "tests/packaging/test_distribution.py",
    "tests/packaging/test_version.py",
    "tests/posterior/test_distillation.py",
    "tests/posterior/test_every_moment.py",
    "tests/posterior/test_export.py",
    "tests/posterior/test_folder_lock.py",
    "tests/posterior/test_full_disk.py",
    "tests/posterior/test_kill.py",
    "tests/posterior/test_links.py",
    "tests/posterior/test_old_formats.py",
    "tests/posterior/test_pooling.py",
    "tests/posterior/test_streaming.py",
    "tests/posterior/test_uncertainty.py",
    "tests/preconditioners/test_settings.py",
    "tests/report/test_browser.py",
    "tests/report/test_page.py",
    "tests/report/test_posterior_page.py",
    "tests/sampling/test_precision_and_schedules.py",
    "tests/sampling/test_recipe.py",
    "tests/sampling/test_resume_checks.py",
    "tests/sampling/test_step_size_search.py",
    "tests/statistics/test_memory.py",
    "tests/statistics/test_selfcheck.py",
    "tests/test_seams.py",
    "tests/test_special.py",
    "tests/test_threads.py",
)


def reason(test: str) -> str | None:
    """Why this test is expected to fail, if it is."""
    if test.startswith(UNSEEN):
        return "not seen since the merges"
    return next((why for start, why in KNOWN.items() if test.startswith(start)), None)
