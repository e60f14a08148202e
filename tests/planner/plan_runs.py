"""Runs with a timetable that can be put in force, for tests of what is proposed and decided."""

from typing import Any

from planner.models import Run, Scenario, User
from tests.planner.web.study import completed_run

REPLICA = {"model": "llama-3.1-8b", "gpu": "A100-80GB", "tp": 1, "role": "mixed",
           "market": "owned", "arrangement": "1 x A100-80GB"}  # fmt: skip


BEGINS = ("2024-05-18T00:00:00Z", "2024-05-18T08:00:00Z", "2024-05-18T20:00:00Z")


def planned_run(
    owner: User,
    counts: tuple[int, ...] = (2, 5),
    scenario: Scenario | None = None,
    region: str = "us-east",
    replica: dict[str, object] = REPLICA,
    **fields: Any,
) -> Run:
    """A comparison that recommends LT-I for $500 a day, with ``counts`` replicas from each time in
    ``BEGINS`` on: by night, by day and, if there is a third one, in the evening."""
    run = completed_run(owner, scenario, **fields)
    run.result["recommended"] = {
        "policy": "lt-i",
        "label": "Planned (LT-I)",
        "follows_plan": True,
        "parameters": {},
        "begins": [],
        "sentence": "Planned (LT-I) costs $500.",
        "timetable": {
            "pools": [{"region": region, "replica": replica}],
            "rows": [
                {"begins": begins, "replicas": [count]}
                for begins, count in zip(BEGINS, counts, strict=False)
            ],
            "by_itself": False,
        },
    }
    run.save()
    return run
