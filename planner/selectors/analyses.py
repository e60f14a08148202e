"""List the analyses of a scenario, each with its newest run and the time that it takes."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median

from django.db.models import F, Q

from planner.models import Run, Scenario
from planner.selectors.runs import answer_of, runs_with_answers

Kind = Run.Kind
RECENT = 500  # completed runs from which durations are estimated


@dataclass(frozen=True, slots=True)
class Analysis:
    """A question that a kind of run answers.

    ``page`` is the form for a question that needs choices first.
    """

    kind: str
    label: str
    answers: str
    page: str = ""


@dataclass(frozen=True, slots=True)
class AnalysisState:
    """The state of an analysis of a scenario: its newest run, and the usual duration.

    ``headline`` is the newest result in a few words. ``outdated`` means that the scenario changed
    since. ``seconds`` is None if no run of the kind has completed yet.
    """

    analysis: Analysis
    run: Run | None
    result: Run | None
    headline: str
    outdated: bool
    seconds: float | None


ANALYSES = (
    Analysis(Kind.COMPARE, "Plan and compare", "Replicas, cost, SLO attainment and risk"),
    Analysis(Kind.FORECAST, "Forecast", "Demand ahead, with its band and error"),
    Analysis(Kind.PLAN, "Plan without simulation", "Replicas per pool, from the optimizer"),
    Analysis(Kind.SIZE, "Replica capacity", "Requests/s of a replica within the SLO"),
    Analysis(Kind.PD_RATIO, "Prefill-decode ratio", "Prefill to decode replicas", "pd-ratio"),
    Analysis(Kind.PROVISION, "Operator-level provisioning", "GPUs by operators and modules"),
    Analysis(Kind.PLACE, "Network placement", "Nodes and racks for the replicas"),
    Analysis(Kind.SHARE, "Shared GPUs", "GPUs if several models run on one"),
    Analysis(Kind.BACKTEST, "Forecasters", "Cost and error of each forecast method"),
    Analysis(Kind.OUTLOOK, "Cost by month", "GPUs and cost a year ahead"),
    Analysis(Kind.PARETO, "Cost and carbon", "The plans that trade one for the other"),
)


def analyses_of(scenario: Scenario) -> list[AnalysisState]:
    """Return every analysis with its newest run of ``scenario``."""
    own = scenario.runs.filter(sweep=None)
    newest = _newest(own.order_by("-pk").values_list("kind", "pk"))
    completed = own.filter(state=Run.State.COMPLETED)
    results = _newest(completed.order_by("-pk").values_list("kind", "pk"))
    rows = runs_with_answers().filter(pk__in={*newest.values(), *results.values()})
    runs_by_id = rows.annotate(outdated=~Q(document=scenario.document)).in_bulk()
    seconds = _durations()
    states = []
    for analysis in ANALYSES:
        run = runs_by_id.get(newest.get(analysis.kind, 0))
        result = runs_by_id.get(results.get(analysis.kind, 0))
        sentence = answer_of(result) if result else ""
        outdated = bool(result and result.outdated)
        took = seconds.get(analysis.kind)
        states.append(AnalysisState(analysis, run, result, sentence, outdated, took))
    return states


def _newest(rows: Iterable[tuple[str, int]]) -> dict[str, int]:
    """Return the first number of each kind; rows are sorted from the newest."""
    first: dict[str, int] = {}
    for kind, number in rows:
        first.setdefault(kind, number)
    return first


def _durations() -> dict[str, float]:
    """Return the median duration of the recent runs of each kind, in seconds."""
    rows = Run.objects.filter(state=Run.State.COMPLETED, started_at__isnull=False)
    took = rows.annotate(took=F("finished_at") - F("started_at")).order_by("-pk")
    by_kind = defaultdict(list)
    for kind, duration in took.values_list("kind", "took")[:RECENT]:
        by_kind[kind].append(duration.total_seconds())
    return {kind: median(seconds) for kind, seconds in by_kind.items()}
