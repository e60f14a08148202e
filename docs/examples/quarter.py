"""Plan thirteen weeks with the data known on each Monday, and compare each with its week.

    HEADROOM_DATA_DIR=/tmp/quarter .venv/bin/python docs/examples/quarter.py PATH/TO/traces

The folder must be new, because the script makes decisions of a whole quarter. ``PATH/TO/traces``
has two public files: ``burstgpt_hourly.csv``
(BurstGPT, CC-BY 4.0: 47 days of a campus, hourly) and ``azure2024_requests_10s.csv.gz`` (Azure's
LLM inference trace of 2024, CC-BY 4.0: a week of a chat service). No quarter of either is public,
so the weeks repeat: BurstGPT's six whole weeks in order, and Azure's week at the level that
BurstGPT had three weeks before.
"""

import argparse
import csv
import gzip
import io
import json
import os
import sys
from collections import defaultdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

HOUR, WEEK = timedelta(hours=1), timedelta(days=7)
HOURS = 7 * 24  # of a week
BEGINS = datetime(2024, 1, 1, tzinfo=UTC)  # a Monday; the calendar of the quarter is made up
HISTORY = 2  # weeks before the first plan
FIRST_MONDAY = 5  # day of BurstGPT: its days 3 and 4 are the first weekend
NAME = "Mondays"
SCENARIO = """\
# Two services of two public traces, planned every Monday for the coming week.
version: 1
name: Quarter
models: [llama-2-70b, llama-3.1-8b]
profiles:
  - {{model: llama-2-70b, gpu: H100-SXM, tp: 8}}
  - {{model: llama-3.1-8b, gpu: A100-80GB, tp: 2}}
regions:
  - {{name: us-east, like: us-east-1, capacity: {{H100-SXM: 4096, A100-80GB: 512}}}}
tiers:
  - {{name: chat, ttft_ms: 2000, tbt_ms: 200, percentile: 95}}
traffic:
  bin_s: 3600
  sources:
    - file: quarter.csv
      series: azure
      model: llama-2-70b
      scale: {scale}
      input_tokens: {{mean: 1630, cv: 1.0}}
      output_tokens: {{mean: 107, cv: 1.0}}
    - file: quarter.csv
      series: burstgpt
      model: llama-3.1-8b
      scale: {burst}
      input_tokens: {{mean: 600, cv: 1.0}}
      output_tokens: {{mean: 200, cv: 1.0}}
forecast: {{method: {method}}}
horizon: {{duration_s: 604800, period_s: {period_s}}}
"""


def burstgpt(path: Path) -> list[list[float]]:
    """Return the conversation requests per hour of each whole week, from Monday on."""
    with path.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    hours = [float(row["conversation_requests"]) for row in rows][24 * FIRST_MONDAY :]
    return [hours[i : i + HOURS] for i in range(0, len(hours) - HOURS + 1, HOURS)]


def azure(path: Path) -> list[float]:
    """Return the requests per hour of the week. The label of a bin is its middle."""
    sums: dict[int, float] = defaultdict(float)
    with io.TextIOWrapper(gzip.open(path), encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if row["service"] == "conv":
                at = datetime.fromisoformat(row["time_utc"].replace("Z", "").replace(" ", "T"))
                sums[at.weekday() * 24 + at.hour] += float(row["requests"])
    return [sums[hour] for hour in range(HOURS)]


def weeks_of(data: Path, weeks: int) -> list[tuple[list[float], list[float]]]:
    """Return the weeks of both services, as the docstring of the module explains."""
    known, one = (
        burstgpt(data / "burstgpt_hourly.csv"),
        azure(data / "azure2024_requests_10s.csv.gz"),
    )
    mean = sum(map(sum, known)) / len(known)
    level = [sum(week) / mean for week in known]
    return [
        ([level[(w - 3) % len(known)] * hour for hour in one], known[w % len(known)])
        for w in range(weeks)
    ]


def write(folder: Path, data: Path, weeks: int, **settings: Any) -> Path:
    """Write the demand file and the scenario, and return the path of the scenario."""
    with (folder / "quarter.csv").open("w", encoding="utf-8") as file:
        print("time,series,requests", file=file)
        for w, both in enumerate(weeks_of(data, weeks)):
            for name, hours in zip(("azure", "burstgpt"), both, strict=True):
                for hour, count in enumerate(hours):
                    at = BEGINS + w * WEEK + hour * HOUR
                    print(f"{at:%Y-%m-%dT%H:%M:%SZ},{name},{count:.0f}", file=file)
    path = folder / "quarter.yml"
    path.write_text(SCENARIO.format(**settings), encoding="utf-8")
    return path


def quarter(scenario: Path, weeks: int, most_replicas: float, most_cost: float) -> dict[str, Any]:
    """Run the schedule of every Monday. Anna approves each plan that needs a review."""
    from django.core.management import call_command

    from planner.models import Proposal, User
    from planner.models.workspace import MAIN, use_workspace
    from planner.services.proposals import approve

    def schedule(*words: str) -> dict[str, Any]:
        out = io.StringIO()
        call_command("schedule", *words, "--json", stdout=out)
        answer: dict[str, Any] = json.loads(out.getvalue())
        return answer

    first = BEGINS + HISTORY * WEEK
    with use_workspace(MAIN):
        anna = User.objects.create_user("anna", role=User.Role.APPROVER)
    schedule(
        "add", NAME, "--scenario", str(scenario), "--cron", "0 0 * * 1",
        "--most-replicas", str(most_replicas), "--most-cost", str(most_cost),
        "--now", (first - HOUR).isoformat(),
    )  # fmt: skip
    fired = []
    for week in range(weeks):
        now = first + week * WEEK
        (firing,) = schedule("tick", "--now", now.isoformat())["firings"]
        if firing["state"] == "review":
            with use_workspace(MAIN):
                approve(proposal=Proposal.objects.get(pk=firing["proposal"]), by=anna, now=now)
        fired.append(firing)
        print(f"{now:%Y-%m-%d}  {firing['state']:8}  {firing['words']}", file=sys.stderr)  # noqa: T201
    end = first + weeks * WEEK
    outcomes = schedule("outcomes", NAME, "--now", end.isoformat())["outcomes"]
    outcomes.sort(key=lambda one: one["begins"])
    for one in outcomes:
        print(f"{one['begins'][:10]}  {one['words']}", file=sys.stderr)  # noqa: T201
    return {"firings": fired, "outcomes": outcomes}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("data", type=Path, help="folder with the two public files")
    parser.add_argument("--weeks", type=int, default=13)
    parser.add_argument("--scale", type=float, default=0.2, help="of Azure's requests")
    parser.add_argument("--burst", type=float, default=200.0, help="times BurstGPT's requests")
    parser.add_argument("--method", default="auto", help="forecaster")
    parser.add_argument("--most-replicas", type=float, default=0.15)
    parser.add_argument("--most-cost", type=float, default=0.1)
    given = parser.parse_args()
    folder = Path(os.environ.get("HEADROOM_DATA_DIR", ""))
    if not str(folder) or folder.exists():
        parser.error("name a folder that is not there yet in HEADROOM_DATA_DIR; it is made.")
    sys.path.insert(0, str(Path(__file__).parents[2]))
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "planner.config.settings")
    import django
    from django.core.management import call_command

    django.setup()
    call_command("migrate", verbosity=0)
    settings = {"scale": given.scale, "burst": given.burst, "method": given.method}
    scenario = write(folder, given.data, given.weeks + HISTORY, period_s=3600, **settings)
    done = quarter(scenario, given.weeks, given.most_replicas, given.most_cost)
    (folder / "quarter.json").write_text(json.dumps(done), encoding="utf-8")


if __name__ == "__main__":
    main()
