"""bin/manage estimate: TTFT, TBT, throughput, power and memory of a deployment at a concurrency."""

from __future__ import annotations

from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from planner.errors import PlannerError
from planner.estimates.rows import read_rows
from planner.management.base import HeadroomCommand
from planner.services.estimates import Measured, estimate_file, estimate_one

WIDTHS = ("tp", "pp", "attention-dp", "moe-tp", "moe-ep")
NEEDED = ("model", "gpu", "isl", "osl", "concurrency")


class Command(HeadroomCommand):
    help = "Estimate one deployment in steady state, or every row of a file."

    def add_arguments(self, parser: ArgumentParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("--rows", help="file with these options as columns, one row each")
        parser.add_argument("--model", help="name in the catalogue or on Hugging Face")
        parser.add_argument("--gpu", help="GPU type, such as H100-SXM or h100_sxm")
        for side in ("", "prefill-", "decode-"):
            for width in WIDTHS:
                what = {"": "", "prefill-": "of prefill workers", "decode-": "of decode workers"}
                parser.add_argument(f"--{side}{width}", type=int, help=what[side])
        parser.add_argument("--prefill-workers", type=float)
        parser.add_argument("--decode-workers", type=float)
        parser.add_argument("--precision", help="of the weights: bf16, fp8, fp4, int8 or int4")
        parser.add_argument("--kv-cache", help="precision of the KV cache")
        parser.add_argument("--engine", help="vllm (default), sglang or trtllm")
        parser.add_argument("--engine-version", help="such as 0.19.0")
        parser.add_argument("--draft-tokens", type=float, help="speculative decoding: per step")
        parser.add_argument("--accepted-tokens", type=float, help="of them, on average")
        parser.add_argument(
            "--rounds",
            type=float,
            help="requests of each user, all starting together (10, as in benchmarks); many, such "
            "as 1000, for traffic that comes as it comes",
        )
        parser.add_argument("--mode", help="agg (default), or disagg: prefill and decode apart")
        parser.add_argument("--isl", type=float, help="input tokens of a request")
        parser.add_argument("--osl", type=float, help="output tokens of a request")
        parser.add_argument("--concurrency", type=float, help="requests under way at any time")
        parser.add_argument(
            "--measured",
            help="file of your own measured rows, with these options as columns and ttft_ms, "
            "tbt_ms; they move the estimate, as do those that were uploaded",
        )
        parser.add_argument(
            "--without-kept", action="store_true", help="leave measurements kept here out"
        )

    def answer(self, options: dict[str, Any]) -> dict[str, Any]:
        given = {key: options[key] for key in FIELDS if options[key] is not None}
        file = options["measured"]
        measured = Measured(
            read_rows(file) if file else (), Path(file).name if file else "",
            kept=not options["without_kept"],
        )  # fmt: skip
        if options["rows"]:
            if given:
                raise PlannerError(
                    f"--{next(iter(given)).replace('_', '-')} and --rows exclude each other; make "
                    "it a column of the file."
                )
            return {"rows": estimate_file(options["rows"], measured)}
        missing = [name for name in NEEDED if name not in given]
        if missing:
            raise PlannerError(
                f"--{missing[0]} is missing; estimate needs {', '.join(f'--{n}' for n in NEEDED)}, "
                "or --rows FILE."
            )
        return estimate_one(given, measured)

    def words(self, answer: dict[str, Any]) -> str:
        if "rows" in answer:
            return "\n".join(_line(row) for row in answer["rows"])
        lines = [_line(answer), f"{answer['provenance']['kind']}: {answer['provenance']['source']}"]
        lines += [f"assumed: {note}" for note in answer["assumptions"]]
        lines += own_lines(answer)
        return "\n".join(
            [*lines, *(f"note: {note}" for note in answer["expected_error"]["outside"])]
        )


def own_lines(answer: dict[str, Any]) -> list[str]:
    """What one's own measurements changed, and which one more would help most."""
    own, further, lines = answer["own"], answer["next_measurement"], list(answer["notes"])
    if own:
        lines.append(
            f"your measurements: {own['rows']} rows of this deployment, {own['alike']} of others; "
            f"before them TTFT {own['ttft_ms_before']:.0f} ms, TBT {own['tbt_ms_before']:.1f} ms, "
            f"{own['tokens_per_s_before']:,.0f} tokens/s"
        )
    (ttft, tbt), (ttft_after, tbt_after) = further["error"], further["after"]
    lines.append(
        f"to measure next: {further['concurrency']} requests in flight; half of all loads then lie "
        f"within {ttft_after:.0%} in TTFT and {tbt_after:.0%} in TBT, now {ttft:.0%} and {tbt:.0%}"
    )
    return [*lines, *(f"  {command}" for command in further["commands"])]


def _line(row: dict[str, Any]) -> str:
    if "refused" in row:
        return f"refused: {row['refused']}"
    error = row["expected_error"]
    return (
        f"{row['model']} on {row['gpus']:.10g} x {row['gpu']}: TTFT {row['ttft_ms']:.0f} ms "
        f"({within(error, 'ttft')}), TBT {row['tbt_ms']:.1f} ms ({within(error, 'tbt')}), "
        f"{row['tokens_per_s']:,.0f} tokens/s, {row['power_w']:,.0f} W, "
        f"{row['memory_gb']:.0f} GB per GPU"
    )


def within(error: dict[str, Any], name: str) -> str:
    """What the stated error says."""
    return f"half within {error[name]:.0%}, nine of ten within {error[name + '_90']:.0%}"


FIELDS = (
    *(f"{s}{w}".replace("-", "_") for s in ("", "prefill-", "decode-") for w in WIDTHS),
    "model", "gpu", "prefill_workers", "decode_workers", "precision", "kv_cache", "engine",
    "engine_version", "draft_tokens", "accepted_tokens", "rounds", "mode",
    "isl", "osl", "concurrency",
)  # fmt: skip
