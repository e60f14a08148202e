"""``bin/manage quick-size``: GPUs for users at once or a rate, in one line."""

from argparse import ArgumentParser, Namespace

from planner.domain.options import options_in, options_of
from planner.domain.report import Fact, Note, Report, Section
from planner.management.base import HeadroomCommand
from planner.management.options import add_options, options_from_command_line
from planner.management.runs import report_text
from planner.services.quick_size import SPARE_REPLICAS, QuickSize, SizeQuestion, quick_size

GROUPS = {
    "fleet": ("model", "gpu"),
    "load: --users or --rps": ("users", "rps", "isl", "osl", "cached_share"),
    "limits": ("ttft_ms", "tbt_ms"),
}
ALIASES = {"isl": "--input", "osl": "--output", "tbt_ms": "--tpot-ms"}


class Command(HeadroomCommand):
    help = "Count the GPUs for a number of users or a request rate, without a trace."
    examples = (
        "quick-size --model llama-3.1-8b --gpu H100-SXM --users 100",
        "quick-size --model llama-3.1-70b --gpu H100-SXM --rps 5 --isl 4000 --osl 1000",
        "quick-size --model llama-3.1-70b --gpu A100-80GB --users 50 --ttft-ms 1000 --json",
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        add_options(parser, options_in(SizeQuestion), groups=GROUPS, aliases=ALIASES)

    def answer(self, options: Namespace) -> QuickSize:
        given = options_from_command_line(SizeQuestion, options)
        return quick_size(options_of(SizeQuestion, given))

    def words(self, answer: QuickSize) -> str:
        return report_text(_report(answer), self.stdout)


def _report(size: QuickSize) -> Report:
    """Return the answer with its cost, latencies and assumptions."""
    gpus_each = f"{size.tp} {'GPU' if size.tp == 1 else 'GPUs'} each"
    return Report(
        title=size.model,
        answer=f"Use {size.recommended_gpus:,} {size.gpu}: {size.recommended_replicas:,} replicas "
        f"of {size.model} on {gpus_each}, of which {SPARE_REPLICAS} is spare.",
        facts=(
            Fact("Cost per hour", size.recommended_cost_usd_per_hour, "$"),
            Fact("Cost without spare", size.cost_usd_per_hour, "$"),
            Fact("TTFT", size.ttft_ms, "ms"),
            Fact("TPOT", size.tbt_ms, "ms"),
            Fact("Output, all replicas", size.tokens_per_s, "tokens/s"),
        ),
        sections=(Section("Assumptions", tuple(map(Note, size.assumptions))),),
    )
