"""``bin/manage quick-size``: GPUs for a number of users at once, in one line."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from planner.management.base import HeadroomCommand
from planner.services.quick_size import quick_size


class Command(HeadroomCommand):
    help = "Return the fewest GPUs for a number of users at once; everything has a default."

    def add_arguments(self, parser: ArgumentParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("--users", type=int, default=50, help="requests in flight (50)")
        parser.add_argument("--input", type=float, default=1000.0, help="input tokens (1000)")
        parser.add_argument("--output", type=float, default=500.0, help="output tokens (500)")
        parser.add_argument("--model", default="llama-3.1-70b", help="model (llama-3.1-70b)")
        parser.add_argument(
            "--gpu", default="H100-SXM", help="GPU type or cloud instance (H100-SXM)"
        )
        parser.add_argument("--ttft-ms", type=float, default=2000.0, help="limit of TTFT (2000)")
        parser.add_argument("--tpot-ms", type=float, default=50.0, help="limit of TPOT (50)")

    def answer(self, options: dict[str, Any]) -> dict[str, Any]:
        return quick_size(
            users=options["users"],
            input_tokens=options["input"],
            output_tokens=options["output"],
            model=options["model"],
            gpu=options["gpu"],
            ttft_ms=options["ttft_ms"],
            tpot_ms=options["tpot_ms"],
        )

    def words(self, answer: dict[str, Any]) -> str:
        lines = [
            f"{answer['gpus']:,} {answer['gpu']}: {answer['replicas']:,} replicas of "
            f"{answer['model']} on {answer['tp']} GPUs each.",
            f"  TTFT {answer['ttft_ms']:,.0f} ms, TPOT {answer['tpot_ms']:,.1f} ms, "
            f"{answer['users_per_replica']:,.1f} users per replica, "
            f"{answer['tokens_per_s']:,.0f} tokens/s in all",
        ]
        return "\n".join(lines + [f"  assumed: {each}" for each in answer["assumptions"]])
