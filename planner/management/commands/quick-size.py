"""``bin/manage quick-size``: GPUs for users at once or a rate, in one line."""

from argparse import ArgumentParser, Namespace

from planner.domain.report import Fact, Note, Report, Section
from planner.management.base import HeadroomCommand
from planner.management.runs import report_text
from planner.services.quick_size import QuickSize, SizeQuestion, quick_size


class Command(HeadroomCommand):
    help = "Return the fewest GPUs for users at once, or for a rate, without a trace."
    examples = (
        "quick-size --model llama-3.1-8b --gpu H100-SXM --users 100",
        "quick-size --model llama-3.1-70b --gpu H100-SXM --rps 5 --isl 4000 --osl 1000",
        "quick-size --model llama-3.1-70b --gpu A100-80GB --users 50 --ttft-ms 1000 --json",
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        fleet = parser.add_argument_group("fleet")
        fleet.add_argument("--model", required=True, help="name in the catalogue")
        fleet.add_argument("--gpu", required=True, help="GPU type or cloud instance")
        load = parser.add_argument_group("load: --users or --rps")
        load.add_argument("--users", type=int, help="requests in flight")
        load.add_argument("--rps", type=float, help="requests per second")
        load.add_argument("--isl", "--input", type=int, default=1000, help="input tokens")
        load.add_argument("--osl", "--output", type=int, default=500, help="output tokens")
        load.add_argument(
            "--cached-share", type=float, default=0.0,
            help="cached share of input tokens, from 0",
        )  # fmt: skip
        limits = parser.add_argument_group("limits")
        limits.add_argument("--ttft-ms", type=float, default=2000.0, help="time to first token")
        limits.add_argument(
            "--tbt-ms", "--tpot-ms", type=float, default=50.0, help="time per output token"
        )

    def answer(self, options: Namespace) -> QuickSize:
        return quick_size(
            SizeQuestion(**{key: getattr(options, key) for key in SizeQuestion.__slots__})
        )

    def words(self, answer: QuickSize) -> str:
        return report_text(_report(answer), self.stdout)


def _report(size: QuickSize) -> Report:
    """Return the answer as a report: the metrics are rows."""
    replicas, tp = size.replicas, size.tp
    what = f"{replicas:,} {'replica' if replicas == 1 else 'replicas'} of {size.model}"
    return Report(
        title=size.model,
        answer=f"Use {size.gpus:,} {size.gpu}: {what} on {tp} {'GPU' if tp == 1 else 'GPUs'} each.",
        facts=(
            Fact("Cost per hour", size.cost_usd_per_hour, "$"),
            Fact("TTFT", size.ttft_ms, "ms"),
            Fact("TPOT", size.tbt_ms, "ms"),
            Fact("Output, all replicas", size.tokens_per_s, "tokens/s"),
        ),
        sections=(Section("Assumptions", tuple(map(Note, size.assumptions))),),
    )
