"""Which columns a table shows, and under which heads."""

from __future__ import annotations

from planner.outputs.policy_tables import policy_table

ROW = {"slo_attainment": {"fast": 0.99}, "worst_hour": {"fast": 0.9}, "slo_met": {"fast": True}}


def test_what_stands_below_a_column_stands_below_no_other() -> None:
    """A run whose tiers are not known, as its tables are gone, says nothing of any tier."""
    tables = [policy_table([("lt-i", "LT-I", ROW)], tiers) for tiers in (["fast"], [])]
    known, unknown = ({head.text: head.small for head in table.heads} for table in tables)
    assert known.pop("fast") == ("worst hour",)
    known = {head: small for head, small in known.items() if not head.startswith("fast ")}
    assert known == unknown and unknown["Carbon"] == ()
    (line,) = tables[1].lines
    assert len(line.cells) == len(unknown)
    assert line.cells[list(unknown).index("Carbon")].small == ""
