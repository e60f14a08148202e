"""``bin/manage estimate``: estimate latency, throughput, power and memory of a deployment."""

from argparse import ArgumentParser
from typing import Any

from planner.domain.estimate_answer import EstimateAnswer, RateAnswer, Refused
from planner.errors import PlannerError
from planner.management.base import HeadroomCommand
from planner.services.estimates import estimate_file, estimate_one, measurements_from_file

WIDTHS = {
    "tp": "tensor parallelism",
    "pp": "pipeline parallelism",
    "attention-dp": "data parallelism of attention",
    "moe-tp": "tensor parallelism of experts",
    "moe-ep": "expert parallelism",
}
NEEDED = ("model", "gpu", "isl", "osl", "concurrency")


class Command(HeadroomCommand):
    help = "Estimate one deployment in steady state, or every row of a file."
    examples = (
        "estimate --model llama-3.1-8b --gpu H100-SXM --isl 1000 --osl 200 --concurrency 16",
        "estimate --model llama-3.1-70b --gpu H100-SXM --tp 4 --isl 4000 --osl 500 --rate 2",
        "estimate --rows deployments.csv --json",
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--model", help="name in the catalogue or on Hugging Face")
        parser.add_argument("--gpu", help="GPU type, such as H100-SXM or h100_sxm")
        load = parser.add_argument_group("load")
        load.add_argument("--isl", type=float, help="input tokens of a request")
        load.add_argument("--osl", type=float, help="output tokens of a request")
        load.add_argument("--concurrency", type=float, help="requests in flight")
        load.add_argument(
            "--rate",
            type=float,
            help="random arrivals per second, instead of --concurrency; simulated on the profile "
            "of sizes and plans",
        )
        self._add_widths(parser)
        engine = parser.add_argument_group("engine")
        engine.add_argument(
            "--precision", help="precision of the weights: bf16, fp8, fp4, int8 or int4"
        )
        engine.add_argument("--kv-cache", help="precision of the KV cache")
        engine.add_argument("--engine", help="vllm, sglang or trtllm. Default: vllm")
        engine.add_argument("--engine-version", help="version of the engine, such as 0.19.0")
        engine.add_argument(
            "--draft-tokens", type=float, help="draft tokens per step (speculative decoding)"
        )
        engine.add_argument(
            "--accepted-tokens", type=float, help="accepted draft tokens, on average"
        )
        engine.add_argument(
            "--acceptance", type=float, help="share of the draft tokens that is accepted"
        )
        engine.add_argument(
            "--max-num-seqs", type=float, help="most sequences in a decode batch of a rank"
        )
        engine.add_argument(
            "--chunk-tokens", type=float, help="prompt tokens of an iteration. Default: 8192"
        )
        engine.add_argument(
            "--prefix-hit-rate", type=float, help="share of a prompt in the prefix cache"
        )
        engine.add_argument("--ttft-statistic", help="mean or median. Default: mean")
        engine.add_argument(
            "--rounds",
            type=float,
            help="requests per user; 1000 for steady traffic. Default: 10, as in benchmarks",
        )
        engine.add_argument(
            "--equal-lengths",
            choices=("yes", "no"),
            help="whether all requests have equal lengths. Default: yes in a benchmark, except "
            "for lengths of InferenceMAX",
        )
        engine.add_argument(
            "--recv-interval",
            type=float,
            help="iterations between SGLang's polls for requests. Default: 1; 10 or 30 for "
            "benchmarks with lengths of InferenceMAX",
        )
        engine.add_argument("--lora-rank", type=float, help="rank of LoRA adapters")
        engine.add_argument("--lora-active", type=float, help="different adapters in use at once")
        engine.add_argument(
            "--mode", help="agg, or disagg: separate prefill and decode. Default: agg"
        )
        rows = parser.add_argument_group("rows and measurements")
        rows.add_argument("--rows", help="file with these options as columns, one row each")
        rows.add_argument(
            "--measured",
            help="file of your measured rows, with these options, ttft_ms and tbt_ms as columns",
        )
        rows.add_argument("--without-kept", action="store_true", help="ignore stored measurements")

    def _add_widths(self, parser: ArgumentParser) -> None:
        """Add the parallelism of a replica, or of its prefill and decode workers."""
        for role in ("", "prefill", "decode"):
            title = f"parallelism of {role} workers" if role else "parallelism"
            widths = parser.add_argument_group(title)
            for width, what in WIDTHS.items():
                flag = f"--{role}-{width}" if role else f"--{width}"
                widths.add_argument(flag, type=int, help=what)
            if role:
                widths.add_argument(f"--{role}-workers", type=float, help="number of workers")

    def answer(
        self, options: dict[str, Any]
    ) -> EstimateAnswer | dict[str, list[EstimateAnswer | Refused]]:
        fields = {key: options[key] for key in FIELDS if options[key] is not None}
        measured = measurements_from_file(
            options["measured"], use_stored=not options["without_kept"]
        )
        if options["rows"]:
            if fields:
                raise PlannerError(
                    f"--{next(iter(fields)).replace('_', '-')} and --rows exclude each other. Make "
                    "it a column of the file."
                )
            return {"rows": estimate_file(options["rows"], measured)}
        # A rate replaces the concurrency.
        needed = [name for name in NEEDED if name != "concurrency" or "rate" not in fields]
        missing = [name for name in needed if name not in fields]
        if {"rate", "concurrency"} <= fields.keys():
            raise PlannerError("--rate and --concurrency exclude each other. Give one.")
        if missing:
            raise PlannerError(
                f"--{missing[0]} is missing; estimate needs {', '.join(f'--{n}' for n in NEEDED)}, "
                "or --rows FILE."
            )
        return estimate_one(fields, measured)

    def words(self, answer: EstimateAnswer | dict[str, list[EstimateAnswer | Refused]]) -> str:
        if isinstance(answer, dict):
            return "\n".join(map(_line, answer["rows"]))
        return "\n".join(
            [
                _line(answer),
                f"{answer.provenance.kind}: {answer.provenance.source}",
                *(f"assumed: {note}" for note in answer.assumptions),
                *rate_lines(answer.at_rate),
                *own_lines(answer),
                *(f"note: {note}" for note in answer.expected_error.outside),
            ]
        )


def rate_lines(at_rate: RateAnswer | None) -> list[str]:
    """Return the lines on a request rate; empty if the estimate is for a concurrency."""
    if at_rate is None:
        return []
    tbt = "" if at_rate.tbt_p99_ms is None else f" and TBT {at_rate.tbt_p99_ms:.1f} ms"
    return [
        f"at {at_rate.rate_rps:g} requests/s, of at most {at_rate.most_rps:.3g}: "
        f"{at_rate.in_flight:.3g} in flight, 99 of 100 within TTFT {at_rate.ttft_p99_ms:.0f} ms"
        f"{tbt} ({at_rate.by}); constant requests in flight: TTFT "
        f"{at_rate.closed_loop_ttft_ms:.0f} ms, TBT {at_rate.closed_loop_tbt_ms:.1f} ms"
    ]


def own_lines(answer: EstimateAnswer) -> list[str]:
    """Return the effect of your own measurements, and the most useful next one."""
    own, further, lines = answer.own, answer.next_measurement, list(answer.notes or ())
    if own:
        lines.append(
            f"your measurements: {own.rows} rows of this deployment, {own.alike} of others; before "
            f"them TTFT {own.ttft_ms_before:.0f} ms, TBT {own.tbt_ms_before:.1f} ms, "
            f"{own.tokens_per_s_before:,.0f} tokens/s"
        )
    if further is None:
        return lines
    (ttft, tbt), (ttft_after, tbt_after) = further.error, further.after
    lines.append(
        f"to measure next: {further.concurrency} requests in flight. Error at loads from "
        f"1 to 256 in flight: then {ttft_after:.0%} in TTFT and {tbt_after:.0%} in "
        f"TBT, now {ttft:.0%} and {tbt:.0%} (figures above: only this load)"
    )
    return [*lines, *(f"  {command}" for command in further.commands)]


def _line(row: EstimateAnswer | Refused) -> str:
    """Return an estimate as one line."""
    if isinstance(row, Refused):
        return f"refused: {row.refused}"
    error = row.expected_error
    return (
        f"{row.model} on {row.gpus:.10g} x {row.gpu}: TTFT {row.ttft_ms:.0f} ms "
        f"({within(error.ttft, error.ttft_90)}), TBT {row.tbt_ms:.1f} ms "
        f"({within(error.tbt, error.tbt_90)}), {row.tokens_per_s:,.0f} tokens/s, "
        f"{row.power_w:,.0f} W, {row.memory_gb:.0f} GB per GPU"
    )


def within(half: float, nine_of_ten: float) -> str:
    """Return the expected error as text."""
    return f"half within {half:.0%}, nine of ten within {nine_of_ten:.0%}"


FIELDS = (
    *(f"{s}{w}".replace("-", "_") for s in ("", "prefill-", "decode-") for w in WIDTHS),
    "model", "gpu", "prefill_workers", "decode_workers", "precision", "kv_cache", "engine",
    "engine_version", "draft_tokens", "accepted_tokens", "acceptance", "max_num_seqs",
    "chunk_tokens", "prefix_hit_rate", "ttft_statistic", "rounds", "equal_lengths",
    "recv_interval", "lora_rank", "lora_active", "mode", "isl", "osl", "concurrency", "rate",
)  # fmt: skip
