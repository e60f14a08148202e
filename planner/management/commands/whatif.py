"""``bin/manage whatif``: change the plan of a run, without a simulation unless asked for."""

from argparse import ArgumentParser, Namespace
from collections.abc import Sequence

from planner.domain.reports.whatif import answer_report
from planner.domain.serialise import as_json
from planner.domain.whatif.figures import WhatIf
from planner.domain.whatif.settings import chosen_of
from planner.errors import PlannerError
from planner.management.base import Document
from planner.management.options import name_and_setting
from planner.management.runs import ReportCommand, execute, report_text
from planner.selectors.runs import run_get
from planner.services.whatif import what_if_answer, what_if_simulate


class Command(ReportCommand):
    changed: WhatIf | None = None  # the plan with changes; None if they are simulated
    unchanged: WhatIf | None = None  # the plan without changes; None if nothing is changed
    help = "Plan a run again with changed settings: cost, GPU-hours, energy and peak replicas."
    examples = (
        "whatif 12 --growth 1.2",
        "whatif 12 --spare 1 --price H100-SXM=0.8",
        "whatif 12 --limit chat.ttft_ms=500 --simulate",
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("run", type=int, help="number of a plan or comparison")
        parser.add_argument("--growth", type=float, help="factor on demand, such as 1.2")
        parser.add_argument("--quantile", type=float, help="forecast percentile, such as 0.95")
        parser.add_argument("--spare", type=int, help="spare replicas of each pool (1: N+1)")
        for flag, form, text in (
            ("--price", "GPU=TIMES", "factor on the price of a GPU type, such as H100-SXM=0.8"),
            ("--limit", "TIER.LIMIT=VALUE", "ttft_ms, tbt_ms or percentile of a tier"),
            ("--mix", "GPU=SHARE", "largest share of a GPU type in a region"),
            ("--without", "GPU", "leave out this GPU type"),
            ("--set", "ADDRESS=VALUE", "any other value, such as objective.epsilon=0.5"),
        ):
            parser.add_argument(flag, action="append", default=[], metavar=form, help=text)
        parser.add_argument(
            "--simulate", action="store_true", help="also simulate the recommended policy (minutes)"
        )

    def answer(self, options: Namespace) -> Document:
        """Return the plan with the changed settings, or with --simulate the result of its run."""
        tiers: dict[str, dict[str, float]] = {}
        for name, value in _numbers("--limit", options.limit).items():
            # Split at the last dot, because names of tiers may contain dots.
            tier, _, limit = name.rpartition(".")
            tiers.setdefault(tier, {})[limit] = value
        values = {}
        for text in options.set:
            address, value = name_and_setting("--set", text, "ADDRESS=VALUE")
            values[address] = value
        sent = {
            "growth": options.growth,
            "quantile": options.quantile,
            "spare": options.spare,
            "without": options.without,
            "prices": _numbers("--price", options.price),
            "mix": _numbers("--mix", options.mix),
            "values": values,
            "tiers": tiers,
        }
        run = run_get(options.run)
        changes = chosen_of(sent)
        if options.simulate:
            simulated = what_if_simulate(run=run, user=None, chosen=changes, enqueue=False)
            return execute(simulated, self.progress)
        self.changed = what_if_answer(run, changes)
        if changes and not options.json:
            self.unchanged = what_if_answer(run, {})
        return {"run": options.run, **as_json(self.changed)}

    def words(self, answer: Document) -> str:
        """Return the report of the changed plan, or of the simulation if there was one."""
        if self.changed is None:
            return super().words(answer)
        title = f"What-if of run {answer['run']}"
        report = answer_report(title, self.unchanged, self.changed, same=self.unchanged is None)
        return report_text(report, self.stdout)


def _numbers(flag: str, texts: Sequence[str]) -> dict[str, float]:
    """Return the numbers of texts NAME=NUMBER by name; raise PlannerError for any other text."""
    numbers = {}
    for text in texts:
        name, _, number = text.rpartition("=")
        try:
            if not name.strip():
                raise ValueError
            numbers[name] = float(number)
        except ValueError:
            raise PlannerError(f"{flag} {text}: write it as NAME=NUMBER.") from None
    return numbers
