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
    unchanged: WhatIf | None  # the plan without changes; None if nothing is changed
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
        tiers: dict[str, dict[str, float]] = {}
        for name, value in _pairs("--limit", options.limit):
            # Split at the last dot, because names of tiers may contain dots.
            tier, _, limit = name.rpartition(".")
            tiers.setdefault(tier, {})[limit] = value
        sent = {name: getattr(options, name) for name in ("growth", "quantile", "spare", "without")}
        sent |= {
            "prices": dict(_pairs("--price", options.price)),
            "mix": dict(_pairs("--mix", options.mix)),
            "values": dict(
                name_and_setting("--set", text, "ADDRESS=VALUE") for text in options.set
            ),
            "tiers": tiers,
        }
        run, chosen = run_get(options.run), chosen_of(sent)
        if options.simulate:
            simulated = what_if_simulate(run=run, user=None, chosen=chosen, enqueue=False)
            return execute(simulated, self.progress)
        self.unchanged = what_if_answer(run, {}) if chosen and not options.json else None
        self.changed = what_if_answer(run, chosen)
        return {"run": options.run, **as_json(self.changed)}

    def words(self, answer: Document) -> str:
        """Return the report of the changed plan, or of the simulation if there was one."""
        if self.changed is None:
            return super().words(answer)
        title, has_no_change = f"What-if of run {answer['run']}", self.unchanged is None
        report = answer_report(title, self.unchanged, self.changed, same=has_no_change)
        return report_text(report, self.stdout)


def _pairs(flag: str, texts: Sequence[str]) -> list[tuple[str, float]]:
    """Return (name, number) of each text NAME=NUMBER; raise PlannerError for any other text."""
    pairs = []
    for text in texts:
        name, _, value = text.rpartition("=")
        try:
            if not name.strip():
                raise ValueError
            pairs.append((name, float(value)))
        except ValueError:
            raise PlannerError(f"{flag} {text}: write it as NAME=NUMBER.") from None
    return pairs
