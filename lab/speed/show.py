"""The results as tables."""

from __future__ import annotations

from typing import Any

from lab.pages import markdown

HEADINGS = ("chains", "µs / chain-step", "quartiles", "÷ eager SGD", "in CPU time")


#: Title, headings of all columns but the first, rows.
TableParts = tuple[str, tuple[str, ...], list[list[str]]]


def tables(results: dict[str, Any]) -> list[TableParts]:
    """One for every part that was measured."""
    found: list[TableParts] = []
    for part in results["sections"].get("steps", {}).get("networks", []):
        title = f"{part['network']}: {part['parameters']:,} parameters, batch {part['batch_size']}"
        found.append((title, HEADINGS, [_cells(row) for row in part["rows"]]))
    if "samples" in results["sections"]:
        found.append(_samples(results["sections"]["samples"]))
    if "growth" in results["sections"]:
        found.append(_growth(results["sections"]["growth"]))
    figures = _figures(results["sections"])
    if figures:
        found.append(("one process", ("value",), figures))
    return found


def _samples(section: dict[str, Any]) -> TableParts:
    rows = [
        [
            row["name"], f"{row['step_size']:.0e}", f"{row['bias']:+.3f}", f"{row['ess']:,.0f}",
            f"{row['ess_per_second']:,.2f}", f"{row['ess_per_cpu_second']:,.2f}",
        ]
        for row in section["rows"] if row["chosen"]
    ]  # fmt: skip
    headings = ("step size", "bias", "ESS", "ESS / s", "ESS / CPU-s")
    return "effective samples in function space", headings, rows


def _growth(section: dict[str, Any]) -> TableParts:
    rows = []
    for axis, part in section["axes"].items():
        for point in part["points"]:
            cells = _cells(point["qdop"])
            rows.append([f"{axis} {point['size']}", cells[1], cells[2], cells[4]])
        if part["exponent"] is not None:
            rows.append([f"{axis}: a step grows like {axis}^{part['exponent']:.2f}", "", "", ""])
    return "QDOP as one thing grows", (*HEADINGS[:2], HEADINGS[3]), rows


def _figures(sections: dict[str, Any]) -> list[list[str]]:
    rows = []
    if "memory" in sections:
        found = sections["memory"]
        rows = [
            [f"QDOP, bytes per parameter and chain, {what}", f"{found[key]:.1f}"]
            for what, key in (
                ("state", "state_bytes_per_parameter"),
                ("beyond activations", "beyond_activations_bytes_per_parameter"),
            )
        ]
    if "latency" in sections:
        found = sections["latency"]
        beyond = found["import_beyond_torch_seconds"]["median"]
        rows.append(["import natural_langevin beyond import torch", f"{beyond:.2f} s"])
        for name, times in found["first_sample"].items():
            rows.append([f"import to first sample, {name}", f"{times['first']['median']:.1f} s"])
        for name, times in found.get("example", {}).items():
            rows.append([f"README's first example, {name}", f"{times['seconds']['median']:.1f} s"])
    return rows


def _cells(row: dict[str, Any]) -> list[str]:
    start = [row["name"], str(row["chains"])]
    if row["status"] != "measured":
        return [*start, row["status"], "", "", ""]
    time = row["microseconds_per_chain_step"]
    return [
        *start,
        f"{time['median']:,.1f}",
        f"{time['q1']:,.1f} – {time['q3']:,.1f}",
        f"{row['ratio']:.2f}" if "ratio" in row else "",
        f"{row['cpu_ratio_spread']['median']:.2f}" if "cpu_ratio_spread" in row else "",
    ]


def notes(results: dict[str, Any]) -> list[str]:
    """What the figures do not say by themselves."""
    machine, config = results["machine"], results["config"]
    found = [
        f"{machine['device']} on {machine['cpu']}, {config['threads']} threads, matrix products "
        f"{config['precision']}, {config['repeats']} interleaved repeats",
    ]
    for part in results["sections"].get("steps", {}).get("networks", []):
        for row in part["rows"]:
            said = row["reason"] or row.get("note", "")
            if said:
                name = f"{row['name']} x {row['chains']}" if row["chains"] > 1 else row["name"]
                found.append(f"{part['network']}, {name}: {said}")
    found += [f"section {name} FAILED: {why}" for name, why in results["failed"].items()]
    if results["left_out"]:
        found.append(f"left out: {', '.join(results['left_out'])}")
    return found


def plain(results: dict[str, Any]) -> str:
    """All tables, each below its title, and the notes."""
    parts = [f"{title}\n\n{markdown(head, rows)}\n" for title, head, rows in tables(results)]
    return "\n".join([*parts, *notes(results)])
