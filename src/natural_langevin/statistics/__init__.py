"""Gradients: model + batch -> loss, mean gradient and Fisher statistics, for all chains at once.

Imports data, models and likelihoods; preconditioners and up import it.

This is the only backward pass of the library: ``gradients`` has the equations, ``requests`` the
statistics that may be asked for, ``rules`` one file for every kind of layer.
"""

from natural_langevin._internal.chains import Params
from natural_langevin.statistics.capture import Network
from natural_langevin.statistics.data_parallel import Part
from natural_langevin.statistics.gradients import Gradients, Recordings
from natural_langevin.statistics.moments import Sharing, split_rows, unit_rows
from natural_langevin.statistics.prepare import (
    check_hooks,
    plain_copy,
    prepare_model,
    refuse_model,
    with_parameters,
)
from natural_langevin.statistics.requests import (
    Basis,
    DeferredCall,
    Evaluation,
    Group,
    Requests,
    Statistics,
    grouped,
)
from natural_langevin.statistics.rules import (
    RULES,
    Call,
    Outer,
    Rule,
    SampleGradient,
    Scatter,
    Stacked,
    Sum,
    own_units,
    positions,
    register_rule,
    restore_layers,
    row_units,
    use_native_sums,
)
from natural_langevin.statistics.vectorised import vectorised

__all__ = [
    "RULES",
    "Basis",
    "Call",
    "DeferredCall",
    "Evaluation",
    "Gradients",
    "Group",
    "Network",
    "Outer",
    "Params",
    "Part",
    "Recordings",
    "Requests",
    "Rule",
    "SampleGradient",
    "Scatter",
    "Sharing",
    "Stacked",
    "Statistics",
    "Sum",
    "check_hooks",
    "grouped",
    "own_units",
    "plain_copy",
    "positions",
    "prepare_model",
    "refuse_model",
    "register_rule",
    "restore_layers",
    "row_units",
    "split_rows",
    "unit_rows",
    "use_native_sums",
    "vectorised",
    "with_parameters",
]  # fmt: skip
