"""List the analyses of a scenario, each with its newest run and the time that it takes."""

from dataclasses import dataclass
from statistics import median

from django.db.models import Max, Q

from planner.models import Run, Scenario
from planner.selectors.queue_statistics import recent_durations
from planner.selectors.runs import answer_of, runs_with_answers

Kind = Run.Kind


@dataclass(frozen=True, slots=True)
class Analysis:
    """A kind of run, and in words what it answers."""

    kind: Run.Kind
    answers: str
    page: str = ""  # name of a page with a form, if the run needs choices first
    takes: str = "a few minutes"  # its duration in words, until one has completed


@dataclass(frozen=True, slots=True)
class AnalysisState:
    """The state of an analysis of a scenario: its newest run, and the usual duration."""

    analysis: Analysis
    run: Run | None  # the newest run
    result: Run | None  # the newest completed run
    headline: str  # its result in a few words
    outdated: bool  # the scenario changed since that result
    seconds: float | None  # usual duration; None if no run of the kind has completed yet

    @property
    def is_in_view(self) -> bool:
        """Return whether a list shows the analysis above "More"."""
        return self.run is not None or self.analysis.kind in USUAL

    @property
    def is_only_cancelled(self) -> bool:
        """Return whether the newest run was cancelled, and an older one has the result."""
        return bool(self.result and self.run and self.run.state == Run.State.CANCELLED)


SHORT = "under a minute"
USUAL = (Kind.COMPARE, Kind.FORECAST, Kind.PLAN, Kind.SIZE, Kind.PD_RATIO)
ANALYSES = (
    Analysis(Kind.COMPARE, "Replicas, cost, SLO attainment and risk"),
    Analysis(Kind.FORECAST, "Demand ahead, with its band and error", takes=SHORT),
    Analysis(Kind.PLAN, "Replicas per pool, from the optimizer", takes=SHORT),
    Analysis(Kind.SIZE, "Requests/s of a replica within the SLO", takes=SHORT),
    Analysis(Kind.PD_RATIO, "Prefill to decode replicas", "pd-ratio"),
    Analysis(Kind.PROVISION, "GPUs if operators or modules scale separately"),
    Analysis(Kind.PLACE, "Node and rack for each replica"),
    Analysis(Kind.SHARE, "GPUs if several models share a GPU"),
    Analysis(Kind.BACKTEST, "Cost and error of each forecast method"),
    Analysis(Kind.OUTLOOK, "GPUs and cost of the next months"),
    Analysis(Kind.PARETO, "Plans between least cost and least carbon"),
)


def usual_seconds() -> dict[str, float]:
    """Return the median duration of recent runs in seconds, by kind of run."""
    durations = recent_durations(Run.objects.all())
    return {kind: median(seconds) for (_workspace, kind), seconds in durations.items()}


def analyses_of(scenario: Scenario) -> list[AnalysisState]:
    """Return the state of every analysis of ``scenario``, in the order of ANALYSES."""
    # The newest run of each kind, and the newest completed one, as {kind: id}.
    by_kind = scenario.runs.filter(sweep=None).order_by().values_list("kind")
    newest = dict(by_kind.annotate(Max("pk")))
    completed = dict(by_kind.filter(state=Run.State.COMPLETED).annotate(Max("pk")))
    rows = runs_with_answers().filter(pk__in={*newest.values(), *completed.values()})
    runs_by_id = rows.annotate(outdated=~Q(document=scenario.document)).in_bulk()
    seconds_by_kind = usual_seconds()
    states = []
    for analysis in ANALYSES:
        run = runs_by_id.get(newest.get(analysis.kind, 0))
        result = runs_by_id.get(completed.get(analysis.kind, 0))
        states.append(
            AnalysisState(
                analysis=analysis,
                run=run,
                result=result,
                headline=answer_of(result) if result else "",
                outdated=bool(result and result.outdated),
                seconds=seconds_by_kind.get(analysis.kind),
            )
        )
    return states
