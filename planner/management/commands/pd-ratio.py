"""bin/manage pd-ratio: prefill to decode instances of a service, all ratios and the best."""

from __future__ import annotations

from typing import Any

from planner.management.base import RunCommand
from planner.models import Run


class Command(RunCommand):
    help = (
        "The ratio of prefill to decode instances that carries most of a service within its SLOs."
    )
    kind = Run.Kind.PD_RATIO

    def words(self, answer: dict[str, Any]) -> str:
        line = "{:>7} {:>6} {:>12} {:>10}  {:<10} {:>9} {:>9}  {}".format
        rows = [
            answer["headline"],
            line("prefill", "decode", "tokens/s", "requests", "bound by", "TTFT", "TBT", "by"),
        ]
        best = answer["best"]
        for row in answer["ratios"]:
            chosen = (row["prefill"], row["decode"]) == (best["prefill"], best["decode"])
            rows.append(
                line(
                    row["prefill"],
                    row["decode"],
                    f"{row['max_tps']:,.0f}",
                    f"{row['max_rps']:,.2f}/s",
                    row["bound_by"],
                    _ms(row["ttft_ms"]),
                    _ms(row["tbt_ms"]),
                    row["by"] + (" <- best" if chosen else ""),
                )
            )
        lost = [
            f"{best[key]:.0%} with one prefill instance {word}"
            for key, word in (
                ("lost_with_fewer_prefill", "less"),
                ("lost_with_more_prefill", "more"),
            )
            if best[key] is not None
        ]
        rows.append("lost beside the best: " + ", ".join(lost))
        if answer["prediction_error"] is not None:
            rows.append(
                f"closed forms are off by at most {abs(answer['prediction_error']):.1%} where "
                "simulation was run"
            )
        return "\n".join([*rows, *(f"note: {note}" for note in answer["notes"])])


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:,.1f} ms"
