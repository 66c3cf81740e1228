"""Helper modules of this folder on the path; launches that several files of tests share."""

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session")
def four_ranks(tmp_path_factory) -> tuple[Path, dict[str, Any]]:
    """All of ``checkpoint_checks`` on four ranks: the folder they worked in, and the outcomes."""
    import checkpoint_checks
    import launch

    names = [n.removeprefix("check_") for n in vars(checkpoint_checks) if n.startswith("check_")]
    folder = tmp_path_factory.mktemp("four")
    outcomes = launch.checks("checkpoint_checks", names, ranks=4, folder=folder, timeout=600)
    return folder, outcomes
