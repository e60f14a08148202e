"""Report what a comparison knows before it is finished."""

from planner.domain.report import (
    Fact,
    Facts,
    Form,
    Head,
    Report,
    Section,
    Table,
    key_columns,
    table,
)
from planner.domain.reports.compare import assurance_table
from planner.domain.reports.policies import span_text
from planner.domain.results.first_answer import DayProgress, Preview
from planner.domain.traffic.groups import tier_label


def preview_report(preview: Preview) -> Report:
    """Return the report of a comparison under way: a plan that is not simulated yet.

    Recommendations and test days that are known already come with it.
    """
    sections = []
    if preview.assurance:
        found = assurance_table(preview.assurance)
        sections.append(Section("Recommended so far", (found,), "Recommended"))
    answer = preview.answer
    facts = [
        Fact("Cost of the planned window", answer.cost_usd, "$"),
        Fact("GPU-hours", answer.gpu_hours, form=Form.NUMBER),
    ]
    for tier, share in answer.attainment.items():
        label = f"Expected SLO attainment: {tier_label(tier, answer.attainment)}"
        facts.append(Fact(label, share, form=Form.SHARE))
    pools = table(
        answer.pools,
        (Head("Pool", width=3), lambda pool: pool.pool),
        (Head("Replicas"), lambda pool: span_text((pool.fewest, pool.most))),
    )
    blocks = (Facts(tuple(facts)), pools)
    sections.append(Section("First answer, not simulated yet", blocks, "First answer"))
    if preview.test_days:
        sections.append(Section("Test days so far", (_days_table(preview.test_days),), "Test days"))
    return Report("", "", tuple(sections))


def _days_table(days: tuple[DayProgress, ...]) -> Table:
    """Return a table with a row per test day, and whether each policy passes it, if simulated."""

    def results(day: DayProgress) -> dict[str, str]:
        """Return "passes" or "fails" by policy."""
        return {label: "passes" if ok else "fails" for label, ok in day.passes.items()}

    return table(
        days,
        (Head("Test day", width=3), lambda day: day.name),
        (Head("Required from"), lambda day: day.level.capitalize()),
        *key_columns(days, Head("{}"), results),
        note="Each policy with the parameter value tried last.",
    )
