"""bin/manage estimate: TTFT, TBT, throughput, power and memory of a deployment at a concurrency."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from planner.errors import PlannerError
from planner.management.base import HeadroomCommand
from planner.services.estimates import estimate_file, estimate_one

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
        parser.add_argument("--mode", help="agg (default), or disagg: prefill and decode apart")
        parser.add_argument("--isl", type=float, help="input tokens of a request")
        parser.add_argument("--osl", type=float, help="output tokens of a request")
        parser.add_argument("--concurrency", type=float, help="requests under way at any time")

    def answer(self, options: dict[str, Any]) -> dict[str, Any]:
        given = {key: options[key] for key in FIELDS if options[key] is not None}
        if options["rows"]:
            if given:
                raise PlannerError(
                    f"--{next(iter(given)).replace('_', '-')} and --rows exclude each other; make "
                    "it a column of the file."
                )
            return {"rows": estimate_file(options["rows"])}
        missing = [name for name in NEEDED if name not in given]
        if missing:
            raise PlannerError(
                f"--{missing[0]} is missing; estimate needs {', '.join(f'--{n}' for n in NEEDED)}, "
                "or --rows FILE."
            )
        return estimate_one(given)

    def words(self, answer: dict[str, Any]) -> str:
        if "rows" in answer:
            return "\n".join(_line(row) for row in answer["rows"])
        lines = [_line(answer), f"{answer['provenance']['kind']}: {answer['provenance']['source']}"]
        lines += [f"assumed: {note}" for note in answer["assumptions"]]
        return "\n".join(
            [*lines, *(f"note: {note}" for note in answer["expected_error"]["outside"])]
        )


def _line(row: dict[str, Any]) -> str:
    if "refused" in row:
        return f"refused: {row['refused']}"
    error = row["expected_error"]
    return (
        f"{row['model']} on {row['gpus']:.10g} x {row['gpu']}: TTFT {row['ttft_ms']:.0f} ms "
        f"(+-{error['ttft']:.0%}), TBT {row['tbt_ms']:.1f} ms (+-{error['tbt']:.0%}), "
        f"{row['tokens_per_s']:,.0f} tokens/s, {row['power_w']:,.0f} W, "
        f"{row['memory_gb']:.0f} GB per GPU"
    )


FIELDS = (
    *(f"{s}{w}".replace("-", "_") for s in ("", "prefill-", "decode-") for w in WIDTHS),
    "model", "gpu", "prefill_workers", "decode_workers", "precision", "kv_cache", "engine", "mode",
    "isl", "osl", "concurrency",
)  # fmt: skip
