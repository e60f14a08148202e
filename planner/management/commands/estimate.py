"""``bin/manage estimate``: estimate latency, throughput, power and memory of a deployment."""

from argparse import ArgumentParser, Namespace

from planner.domain.estimate_answer import EstimateAnswer, RateAnswer, Refused
from planner.domain.estimate_options import ENGINE, ESTIMATE, LOAD, PARALLELISM, WORKERS
from planner.errors import PlannerError
from planner.inputs.estimates.deployment_rows import read_rows
from planner.management.base import HeadroomCommand
from planner.management.options import add_options, flag_of
from planner.services.estimates import estimate_many, estimate_one, measurements_from_file

GROUPS = {
    "load": tuple(option.name for option in LOAD),
    "parallelism": tuple(option.name for option in PARALLELISM[""]),
    **{
        f"parallelism of {side} workers": tuple(
            option.name for option in (*PARALLELISM[f"{side}_"], WORKERS[f"{side}_"])
        )
        for side in ("prefill", "decode")
    },
    "engine": tuple(option.name for option in ENGINE),
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
        add_options(parser, ESTIMATE, checked=False, groups=GROUPS)
        rows = parser.add_argument_group("rows and measurements")
        rows.add_argument("--rows", help="file with these options as columns, one row each")
        rows.add_argument(
            "--measured",
            help="file of your measured rows, with these options, ttft_ms and tbt_ms as columns",
        )
        rows.add_argument("--without-kept", action="store_true", help="ignore stored measurements")

    def answer(
        self, options: Namespace
    ) -> EstimateAnswer | dict[str, list[EstimateAnswer | Refused]]:
        """Return the estimate of one deployment, or of each row of the file --rows."""
        values = {name: getattr(options, name) for name in ESTIMATE}
        given = {name: value for name, value in values.items() if value is not None}
        measured = measurements_from_file(options.measured, use_stored=not options.without_kept)
        if options.rows:
            if given:
                flag = flag_of(next(iter(given)))
                raise PlannerError(
                    f"{flag} and --rows exclude each other. Make it a column of the file."
                )
            return {"rows": estimate_many(read_rows(options.rows), measured)}
        if "rate" in given and "concurrency" in given:
            raise PlannerError("--rate and --concurrency exclude each other. Give one.")
        missing = [name for name in NEEDED if name not in given]
        if "rate" in given:  # in place of the concurrency
            missing.remove("concurrency")
        if missing:
            needed = ", ".join(map(flag_of, NEEDED))
            raise PlannerError(
                f"{flag_of(missing[0])} is missing; estimate needs {needed}, or --rows FILE."
            )
        return estimate_one(given, measured)

    def words(self, answer: EstimateAnswer | dict[str, list[EstimateAnswer | Refused]]) -> str:
        """Return an estimate with its source, notes and errors as text; of rows, a line each."""
        if isinstance(answer, dict):
            return "\n".join(map(_line, answer["rows"]))
        lines = [_line(answer), f"{answer.provenance.kind}: {answer.provenance.source}"]
        lines += [f"assumed: {note}" for note in answer.assumptions]
        if answer.at_rate is not None:
            lines.append(rate_line(answer.at_rate))
        lines += own_lines(answer)
        lines += [f"note: {note}" for note in answer.expected_error.outside]
        return "\n".join(lines)


def rate_line(at_rate: RateAnswer) -> str:
    """Return the line on an estimate for a request rate."""
    tpot = "" if at_rate.tbt_p99_ms is None else f", P99 TPOT {at_rate.tbt_p99_ms:.1f} ms"
    return (
        f"at {at_rate.rate_rps:g} requests/s (maximum {at_rate.most_rps:.3g}): "
        f"{at_rate.in_flight:.3g} in flight, P99 TTFT {at_rate.ttft_p99_ms:.0f} ms"
        f"{tpot} ({at_rate.by}). Same requests in flight, constant: TTFT "
        f"{at_rate.closed_loop_ttft_ms:.0f} ms, TPOT {at_rate.closed_loop_tbt_ms:.1f} ms"
    )


def own_lines(answer: EstimateAnswer) -> list[str]:
    """Return the lines on the effect of your measurements, and on the most useful next one."""
    lines = list(answer.notes or ())
    own = answer.own
    if own:
        lines.append(
            f"your measurements: {own.rows} rows of this deployment, {own.alike} of similar ones. "
            f"Without them: TTFT {own.ttft_ms_before:.0f} ms, TPOT {own.tbt_ms_before:.1f} ms, "
            f"{own.tokens_per_s_before:,.0f} tokens/s"
        )
    to_measure = answer.next_measurement
    if to_measure is not None:
        ttft_error, tpot_error = to_measure.error
        ttft_error_after, tpot_error_after = to_measure.after
        lines.append(
            f"to measure next: {to_measure.concurrency} requests in flight. Error at loads from "
            f"1 to 256 in flight: then {ttft_error_after:.0%} in TTFT and {tpot_error_after:.0%} "
            f"in TPOT, now {ttft_error:.0%} and {tpot_error:.0%} (figures above: only this load)"
        )
        lines += [f"  {command}" for command in to_measure.commands]
    return lines


def _line(row: EstimateAnswer | Refused) -> str:
    """Return one estimate, or the reason why it is refused, in one line."""
    if isinstance(row, Refused):
        return f"refused: {row.refused}"
    error = row.expected_error
    return (
        f"{row.model} on {row.gpus:.10g} x {row.gpu}: TTFT {row.ttft_ms:.0f} ms "
        f"({expected_error_text(error.ttft, error.ttft_90)}), TPOT {row.tbt_ms:.1f} ms "
        f"({expected_error_text(error.tbt, error.tbt_90)}), {row.tokens_per_s:,.0f} tokens/s, "
        f"{row.power_w:,.0f} W, {row.memory_gb:.0f} GB per GPU"
    )


def expected_error_text(half_within: float, nine_of_ten_within: float) -> str:
    """Return the errors within which half, and nine of ten, of all estimates are, as text."""
    return f"half within {half_within:.0%}, nine of ten within {nine_of_ten_within:.0%}"
