"""bin/manage size: the largest request rate of one replica within the SLOs, and what bounds it."""

from __future__ import annotations

from typing import Any

from planner.management.base import RunCommand
from planner.models import Run


class Command(RunCommand):
    help = "Size one replica of each model on each GPU type: the largest rate within the SLOs."
    kind = Run.Kind.SIZE

    def words(self, answer: dict[str, Any]) -> str:
        rows = [line for pool in answer["pools"] for line in _lines(pool)]
        notes = [f"note: {note}" for note in answer["notes"]]
        return "\n".join([*rows, f"sized by {answer['sized_by']}", *notes])


def _lines(pool: dict[str, Any]) -> list[str]:
    latencies = ", ".join(
        f"{name} p{pool['percentile']:g} {pool[key]:,.1f} ms"
        for name, key in (("TTFT", "ttft_ms"), ("TBT", "tbt_ms"))
        if pool[key] is not None
    )
    role = "" if pool["role"] == "mixed" else f", {pool['role']}"
    lines = [
        f"{pool['model']} on {pool['tp']} x {pool['gpu']}{role}: {pool['max_rps']:.3g} requests/s "
        f"within {pool['tier']}, bound by {pool['bound_by']}; {latencies}"
    ]
    if pool["predicted_rps"]:
        lines.append(
            f"  closed forms: {pool['predicted_rps']:.3g} requests/s "
            f"({pool['prediction_error']:+.1%})"
        )
    source = f"{pool['provenance']['kind']}: {pool['provenance']['source']}"
    if pool["expected_error"] is None:
        return [*lines, f"  profile {source}; its error is not known: {pool['error_basis']}"]
    return [
        *lines,
        f"  profile {source}; off by {pool['expected_error']:.1%} ({pool['error_basis']}): "
        f"{pool['max_rps_if_slower']:.3g} requests/s if slower by as much, "
        f"{pool['max_rps_if_faster']:.3g} if faster",
    ]
