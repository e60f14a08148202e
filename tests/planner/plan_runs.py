"""Runs with a timetable that can be put in force, for tests of what is proposed and decided."""

from typing import Any

from planner.models import Run, Scenario, User
from tests.planner.web.study import completed_run

REPLICA = {"model": "llama-3.1-8b", "gpu": "A100-80GB", "tp": 1, "role": "mixed",
           "market": "owned", "arrangement": "1 x A100-80GB"}  # fmt: skip


def planned_run(
    owner: User, counts: tuple[int, int] = (2, 5), scenario: Scenario | None = None, **fields: Any
) -> Run:
    """A comparison that recommends LT-I for $500 a day, ``counts`` replicas by night and by day."""
    run = completed_run(owner, scenario, **fields)
    rows = [("2024-05-18T00:00:00Z", counts[0]), ("2024-05-18T08:00:00Z", counts[1])]
    run.result["recommended"] = {
        "policy": "lt-i",
        "label": "Planned (LT-I)",
        "follows_plan": True,
        "parameters": {},
        "begins": [],
        "sentence": "Planned (LT-I) costs $500.",
        "timetable": {
            "pools": [{"region": "us-east", "replica": REPLICA}],
            "rows": [{"begins": begins, "replicas": [count]} for begins, count in rows],
            "by_itself": False,
        },
    }
    run.save()
    return run
