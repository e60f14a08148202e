"""``bin/manage quick-size``: GPUs for users at once or a rate, in one line."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from planner.management.base import HeadroomCommand
from planner.services.quick_size import SizeQuestion, quick_size


class Command(HeadroomCommand):
    help = "Return the fewest GPUs for users at once, or for a rate, without a trace."

    def add_arguments(self, parser: ArgumentParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("--model", required=True, help="model")
        parser.add_argument("--gpu", required=True, help="GPU type or cloud instance")
        parser.add_argument("--users", type=int, help="requests in flight; or --rps")
        parser.add_argument("--rps", type=float, help="requests per second; or --users")
        parser.add_argument("--isl", "--input", type=int, default=1000, help="input tokens (1000)")
        parser.add_argument("--osl", "--output", type=int, default=500, help="output tokens (500)")
        parser.add_argument("--ttft-ms", type=float, default=2000.0, help="limit of TTFT (2000)")
        parser.add_argument(
            "--tbt-ms", "--tpot-ms", type=float, default=50.0, help="limit of TPOT (50)"
        )

    def answer(self, options: dict[str, Any]) -> dict[str, Any]:
        return quick_size(SizeQuestion(**{key: options[key] for key in SizeQuestion.__slots__}))

    def words(self, answer: dict[str, Any]) -> str:
        cost = answer["cost_usd_per_hour"]
        lines = [
            f"{answer['gpus']:,} {answer['gpu']}: {answer['replicas']:,} replicas of "
            f"{answer['model']} on {answer['tp']} GPUs each."
            + (f" ${cost:,.2f} per hour." if cost is not None else ""),
            f"  TTFT {answer['ttft_ms']:,.0f} ms, TPOT {answer['tbt_ms']:,.1f} ms, "
            f"{answer['tokens_per_s']:,.0f} output tokens/s in all",
        ]
        return "\n".join(lines + [f"  assumed: {each}" for each in answer["assumptions"]])
