"""``bin/manage pd-ratio``: rate all ratios of prefill to decode replicas and find the best."""

from __future__ import annotations

from typing import Any

from planner.management.base import RunCommand
from planner.models import Run
from planner.outputs.table_text import listed

COLUMNS = {
    "prefill": "prefill:d", "decode": "decode:d", "tokens/s": "max_tps:,.0f",
    "requests/s": "max_rps:,.2f", "bound by": "bound_by", "TTFT ms": "ttft_ms:,.1f",
    "TBT ms": "tbt_ms:,.1f", "by": "by", "": "best",
}  # fmt: skip


class Command(RunCommand):
    help = (
        "The ratio of prefill to decode instances that carries most of a service within its SLOs."
    )
    kind = Run.Kind.PD_RATIO

    def words(self, answer: dict[str, Any]) -> str:
        best = answer["best"]
        chosen = (best["prefill"], best["decode"])
        ratios = [
            row | {"best": "<- best" if (row["prefill"], row["decode"]) == chosen else ""}
            for row in answer["ratios"]
        ]
        lost = [
            f"{share:.0%} with one prefill instance {word}"
            for word in ("fewer", "more")
            if (share := best[f"lost_with_{word}_prefill"]) is not None
        ]
        rows = [answer["headline"], *listed(ratios, COLUMNS)]
        rows.append("lost beside the best: " + ", ".join(lost))
        if answer["prediction_error"] is not None:
            rows.append(
                f"closed forms are off by at most {abs(answer['prediction_error']):.1%} where "
                "simulation was run"
            )
        return "\n".join([*rows, *(f"note: {note}" for note in answer["notes"])])
