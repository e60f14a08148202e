"""``bin/manage configure``: search the cheapest deployments that serve a model."""

from argparse import ArgumentParser, ArgumentTypeError, Namespace
from dataclasses import asdict

from planner.domain.deployment_search.query import ASKED, DeploymentQuery
from planner.domain.deployment_search.results import Row, Side
from planner.domain.deployment_search.search import DeploymentSearchResult
from planner.domain.options import options_of
from planner.domain.report import limit_name
from planner.management.base import HeadroomCommand
from planner.management.options import add_options, options_from_command_line
from planner.outputs.table_text import table_lines
from planner.services.deployment_search import search_deployments
from planner.services.estimates import measurements_from_file
from simulation.performance.specs import WIDTHS

COLUMNS = {
    "$/M tokens": "usd_per_mtok:.3f", "deployment": "deployment", "requests/s": "max_rps:.3g",
    "per GPU": "rps_per_gpu:.3g", "TTFT ms": "ttft_ms:,.0f", "TPOT ms": "tbt_ms:,.1f",
    "GB per GPU": "memory_gb:.0f", "kW": "kw:.2g", "limit": "limit",
    "checked by": "checked", "error TTFT": "error_ttft:.0%", "error TPOT": "error_tbt:.0%",
}  # fmt: skip
IF_MEASURED = {"your rows": "moved"}  # only if measured rows change a speed
GROUPS = {
    "load": ("model", "isl", "osl", "rps"),
    "limits": ("ttft_ms", "tbt_ms", "percentile"),
    "search": ("gpus", "engines", "precisions", "top"),
}
IF_RATE = {"replicas": "instances:d", "$/h": "fleet_usd_per_hour:,.2f"}


def _price(text: str) -> tuple[str, float]:
    """Return (GPU type, dollars per hour) of GPU=DOLLARS."""
    gpu, _, dollars = text.partition("=")
    try:
        return gpu.strip(), float(dollars)
    except ValueError:
        raise ArgumentTypeError(f"{text!r} is not GPU=DOLLARS, such as H100-SXM=2.5") from None


class Command(HeadroomCommand):
    help = "Search the best deployment of a model: GPU type, parallelism, precision, engine."
    examples = (
        "configure --model llama-3.1-70b --isl 4000 --osl 1000",
        "configure --model llama-3.1-70b --isl 4000 --osl 1000 --ttft-ms 1000 --tbt-ms 50 --rps 20",
        "configure --model qwen3-32b --isl 1000 --osl 200 --gpus H100-SXM,H200 --precisions bf16",
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        add_options(parser, ASKED, groups=GROUPS)
        parser.add_argument(
            "--price", type=_price, action="append", default=[], metavar="GPU=DOLLARS",
            help="price per GPU-hour. Default: median of on-demand offers",
        )  # fmt: skip
        rows = parser.add_argument_group("measurements")
        rows.add_argument("--measured", help="file of your measured rows, as for estimate")
        rows.add_argument("--without-kept", action="store_true", help="ignore stored measurements")

    def answer(self, options: Namespace) -> DeploymentSearchResult:
        """Search the deployments that meet the requirements in the options."""
        values = options_from_command_line(DeploymentQuery, options)
        values["prices"] = dict(options.price)
        query = options_of(DeploymentQuery, values)
        measured = measurements_from_file(options.measured, use_stored=not options.without_kept)
        return search_deployments(query, self.progress, measured)

    def words(self, answer: DeploymentSearchResult) -> str:
        """Return the best deployments, the best per GPU type, and what was ruled out, as text."""
        columns = dict(COLUMNS)
        if answer.rps:
            columns = IF_RATE | columns
        if any(candidate.own for candidate in answer.candidates):
            columns |= IF_MEASURED
        lines = [
            f"{answer.model}, {answer.evaluated:,} candidates in {answer.seconds:.1f} s, ranked by "
            f"{answer.ranked_by}",
            "",
        ]
        lines += table_lines(list(map(_cells, answer.candidates)), columns)
        if not answer.candidates:
            lines.append(
                "No deployment meets the limits. Loosen them, or allow other GPUs or precisions."
            )
        lines += ["", "The best of each GPU type"]
        lines += table_lines(list(map(_cells, answer.by_gpu)), columns)
        lines += ["", "Profiles of the best, for a scenario"]
        if answer.candidates:  # as rows of the YAML of a scenario
            best = answer.candidates[0]
            for profile in best.profiles or ():
                fields = ", ".join(f"{key}: {value}" for key, value in profile.items())
                lines.append(f"  - {{{fields}}}")
        lines += ["", "Ruled out"]
        lines += [f"  {number:>9,} {reason}" for reason, number in answer.ruled_out.items()]
        lines.append("")
        lines += [
            f"{assumed.what}: {assumed.value} ({assumed.provenance}, {assumed.source})"
            for assumed in answer.assumptions
        ]
        return "\n".join(lines)


def _cells(candidate: Row) -> dict[str, object]:
    """Return the values of a candidate, with keys for all COLUMNS."""
    correction = ""  # by measured rows
    if candidate.own:
        factors = candidate.own
        correction = f"decode x {factors.decode_factor:.2f}, prefill x {factors.prefill_factor:.2f}"
    return asdict(candidate) | {
        "error_ttft": candidate.expected_error.ttft, "error_tbt": candidate.expected_error.tbt,
        "deployment": deployment(candidate), "kw": candidate.power_w / 1000, "moved": correction,
        "limit": limit_name(candidate.bound_by),
    }  # fmt: skip


def deployment(row: Row) -> str:
    """Return a deployment as text: "2P+3D of 4 x H200, fp8, vllm"."""
    workers = [
        f"{side.instances} x {side.gpus} {row.gpu} {role}{_widths(side)}"
        for role, side in (("prefill", row.prefill), ("decode", row.decode))
        if side is not None
    ]
    if not workers:  # aggregated
        workers = [f"{row.gpus} {row.gpu}{_widths(row)}"]
    return f"{' + '.join(workers)}, {row.precision}, {' or '.join(row.engines)}"


def _widths(side: Row | Side) -> str:
    """Return the parallelism above one in parentheses, such as " (tp 4, pp 2)"; "" if none."""
    widths = {name: getattr(side, name) for name in WIDTHS}
    texts = [f"{name} {width}" for name, width in widths.items() if width > 1]
    return f" ({', '.join(texts)})" if texts else ""
