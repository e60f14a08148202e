"""``bin/manage whatif``: change the plan of a run without a simulation."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Sequence
from typing import Any

from planner.domain.formats import figure
from planner.domain.serialise import as_json
from planner.errors import PlannerError
from planner.management.base import HeadroomCommand
from planner.outputs.table_text import listed
from planner.selectors.runs import run_get
from planner.services.whatif import Changes, run_what_if

SIZES = {"model": "model", "replica": "replica", "input tokens/s": "input_tps:,.0f",
         "before": "before_tps:,.0f"}  # fmt: skip


class Command(HeadroomCommand):
    help = "The plan of a run with demand, quantile, spare, prices, limits or GPU types changed."

    def add_arguments(self, parser: ArgumentParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("run", type=int, help="number of a plan or comparison")
        parser.add_argument("--growth", type=float, default=1.0, help="times the demand")
        parser.add_argument("--quantile", type=float, help="of the forecast, planned for")
        parser.add_argument("--spare", type=int, help="instances (objective.spare)")
        parser.add_argument(
            "--price", action="append", default=[], metavar="GPU=TIMES", help="times its price"
        )
        parser.add_argument(
            "--limit", action="append", default=[], metavar="TIER.LIMIT=VALUE",
            help="ttft_ms, tbt_ms or percentile of a tier",
        )  # fmt: skip
        parser.add_argument(
            "--mix", action="append", default=[], metavar="GPU=SHARE",
            help="at most this share of a region's GPUs",
        )  # fmt: skip
        parser.add_argument(
            "--without", action="append", default=[], metavar="GPU", help="may not be used"
        )

    def answer(self, options: dict[str, Any]) -> dict[str, Any]:
        tiers: dict[str, dict[str, float]] = {}
        for name, value in _pairs("--limit", options["limit"]):
            # Split at the last dot, because names of tiers may contain dots.
            tier, _, limit = name.rpartition(".")
            tiers.setdefault(tier, {})[limit] = value
        changes = Changes(
            growth=options["growth"],
            quantile=options["quantile"],
            spare=options["spare"],
            prices=dict(_pairs("--price", options["price"])),
            tiers=tiers,
            without=tuple(options["without"]),
            mix=dict(_pairs("--mix", options["mix"])),
        )
        answer: dict[str, Any] = as_json(run_what_if(run_get(options["run"]), changes))
        return {"run": options["run"], **answer}

    def words(self, answer: dict[str, Any]) -> str:
        taken = answer["totals"]
        if taken is None:
            return f"No {'such fleet' if answer['flat'] else 'plan'}. {answer['conflict']}"
        lines = [
            f"{figure(taken['usd'], '$')}, {taken['gpu_hours']:,.1f} GPU-hours, "
            f"{_range(answer['least'], answer['most'])} ({answer['status']})",
            *listed(answer["sizes"], SIZES),
            *(f"binds: {sentence}" for sentence in answer["binding"]),
            *answer["notes"],
        ]
        return "\n".join(lines)


def _range(least: int, most: int) -> str:
    """Return a range of replicas as text."""
    count = f"{most:,}" if least == most else f"{least:,} to {most:,}"
    return f"{count} replica{'s' * (most != 1)}"


def _pairs(flag: str, texts: Sequence[str]) -> list[tuple[str, float]]:
    """Return (name, number) of each NAME=NUMBER; raises PlannerError."""
    pairs = []
    for text in texts:
        name, _, value = text.rpartition("=")
        try:
            pairs.append((name, float(value)))
        except ValueError:
            raise PlannerError(f"{flag} {text}: write it as NAME=NUMBER.") from None
    return pairs
