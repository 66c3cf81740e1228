"""`make attack`: every family of attacks, and how many cases were tried, survived and failed.

    python tests/attack                      # all of it, some minutes
    python tests/attack --quick              # some seconds
    python tests/attack --out attack.json    # the same as a file

Exits with 1 where a case failed."""

from __future__ import annotations

import argparse
import datetime
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from families import FAMILIES, QUICK

TESTS = Path(__file__).parents[1]
sys.path.insert(0, str(TESTS.parent))

from lab.pages import with_part  # noqa: E402


def run(families: dict[str, tuple[str, ...]]) -> tuple[dict[str, Any], str]:
    """Counts by family, of one run of pytest over these; and what pytest said."""
    with tempfile.TemporaryDirectory() as folder:
        counts = Path(folder) / "counts.json"
        names = dict.fromkeys(str(TESTS / name) for group in families.values() for name in group)
        paths = [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "counting", "-p", "no:xdist", *names],
            cwd=TESTS.parent,
            # Under pytest-xdist this is a run of its own all the same.
            env={k: v for k, v in os.environ.items() if not k.startswith("PYTEST_XDIST")}
            | {
                "ATTACK_COUNTS": str(counts),
                "OMP_NUM_THREADS": "1",
                "PYTHONPATH": os.pathsep.join(filter(None, paths)),
            },
            capture_output=True,
            text=True,
        )
        found = json.loads(counts.read_text()) if counts.exists() else {}
    rows = {}
    for family, group in families.items():
        files = {f"tests/{name.split('::')[0]}" for name in group}
        own = [found.get(file) for file in sorted(files)]
        row: dict[str, Any] = {
            key: sum(one[key] for one in own if one)
            for key in ("tried", "failed", "skipped", "seconds")
        }
        row["seconds"] = round(row["seconds"], 1)
        row["survived"] = row["tried"] - row["failed"]
        row["failures"] = [name for one in own if one for name in one["failures"]]
        if None in own:  # a file that did not run is no success
            row["failed"] += 1
            row["failures"].append("not run: " + ", ".join(sorted(files)))
        rows[family] = row
    return rows, done.stdout[-20_000:]


def table(rows: dict[str, Any]) -> str:
    """The counts as text, with a line for all of them."""
    columns = ("tried", "survived", "failed", "skipped", "seconds")
    total = {key: round(sum(row[key] for row in rows.values()), 1) for key in columns}
    width = max(map(len, rows))
    lines = [f"{'family':{width}}" + "".join(f"{key:>10}" for key in columns)]
    for name, row in [*rows.items(), ("all", total)]:
        lines.append(f"{name:{width}}" + "".join(f"{row[key]:>10,}" for key in columns))
    return "\n".join(lines)


def page(text: str, rows: dict[str, Any]) -> str:
    """The text with the counts between its markers."""
    lines = ["| family | tried | survived |", "| --- | ---: | ---: |"]
    lines += [f"| {name} | {row['tried']:,} | {row['survived']:,} |" for name, row in rows.items()]
    return with_part(text, "attack", "\n".join(lines))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, prog="attack")
    parser.add_argument("--quick", action="store_true", help="a small part, in seconds")
    parser.add_argument("--out", type=Path, help="write the counts as JSON")
    parser.add_argument("--only", help="families whose name holds this")
    parser.add_argument("--resume", action="store_true", help="only what --out does not hold yet")
    parser.add_argument("--page", type=Path, help="write the counts of results/attack.json here")
    options = parser.parse_args()
    if options.page is not None:
        known = json.loads((TESTS.parent / "results" / "attack.json").read_text())["families"]
        options.page.write_text(page(options.page.read_text(), known))
        return 0
    families = QUICK if options.quick else FAMILIES
    families = {k: v for k, v in families.items() if not options.only or options.only in k}
    rows: dict[str, Any] = {}
    if options.resume and options.out is not None and options.out.exists():
        rows = json.loads(options.out.read_text())["families"]
    for family, group in families.items():
        if family in rows and not rows[family]["failed"]:
            continue
        started = time.monotonic()
        found, said = run({family: group})
        rows[family] = found[family] | {"seconds": round(time.monotonic() - started, 1)}
        if rows[family]["failed"]:
            print(said)
        if options.out is not None:
            write(options.out, {name: rows[name] for name in FAMILIES | QUICK if name in rows})
    print(table(rows))
    failures = [name for row in rows.values() for name in row["failures"]]
    if failures:
        print("failed:", *failures, sep="\n  ")
    return 1 if failures else 0


def write(path: Path, rows: dict[str, Any]) -> None:
    """What was counted so far, family by family."""
    record = {
        "kind": "attack",
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "python": sys.version.split()[0],
        "families": rows,
    }
    path.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
