"""Compare runs: where their settings differ, and their figures against those of the first."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from planner.domain.replay.replica_loss import N_PLUS_1
from planner.domain.results.stored import StoredResult
from planner.errors import NotReady, PlannerError, ScenarioError
from planner.inputs.scenario.address import values_by_address
from planner.inputs.scenario.document import parse
from planner.models import Run
from planner.selectors.run_comparison_figures import (
    Group,
    Setting,
    compare_settings,
    error_groups,
    plan_groups,
    replay_groups,
    size_groups,
)
from planner.selectors.runs import run_get, stored_result

MIN_RUNS, MAX_RUNS = 2, 8  # runs on one page
SPARE = "objective.spare.instances"


@dataclass(frozen=True, slots=True)
class ComparedRun:
    """One of several compared runs, with its headline."""

    run: int
    kind: str
    name: str
    policy: str  # the policy compared; "" if nothing was simulated
    label: str  # label of that policy
    answer: str
    start: datetime | None
    end: datetime | None


@dataclass(frozen=True, slots=True)
class RunComparison:
    """Several runs side by side: the settings that differ, and their figures in groups."""

    runs: tuple[ComparedRun, ...]
    differences: tuple[Setting, ...]
    same: int  # number of settings with the same value in all runs
    groups: tuple[Group, ...]
    notes: tuple[str, ...]
    policies: tuple[str, ...]  # policies that at least one run simulated


def runs_to_compare(numbers: Sequence[int]) -> list[Run]:
    """Return the runs with these ids; raise PlannerError for fewer than 2 or more than 8.

    An id counts once, so that no run is compared with itself.
    """
    numbers = list(dict.fromkeys(numbers))
    if not MIN_RUNS <= len(numbers) <= MAX_RUNS:
        raise PlannerError(f"Give {MIN_RUNS} to {MAX_RUNS} runs to compare, not {len(numbers)}.")
    return [run_get(number) for number in numbers]


def compare_runs(
    runs: Sequence[Run], policy: str = "", policy_per_run: Sequence[str] = ()
) -> RunComparison:
    """Compare completed runs with the first of them.

    By default the recommended policy of each run is compared. ``policy`` replaces it in the runs
    that simulated that policy. ``policy_per_run`` names a policy for each run instead.
    """
    for run in runs:
        if run.kind == Run.Kind.INGEST:
            raise NotReady(f"Run {run.pk} imported a trace. Compare runs of scenarios.")
    results = [stored_result(run) for run in runs]
    policies = policy_per_run or [policy] * len(runs)
    chosen_policies = [
        requested if requested in result.policies else result.default_policy
        for result, requested in zip(results, policies, strict=True)
    ]
    # The settings of each scenario, replaced by those that the run itself chose. A run without a
    # plan chooses none, so if there is one, scenarios are compared as they are.
    settings, unreadable = _settings(runs)
    if all(result.plan or result.policies for result in results):
        for values, result, chosen in zip(settings, results, chosen_policies, strict=True):
            values.update(_as_simulated(values, result, chosen))
    differences, same = compare_settings(settings)
    names = dict.fromkeys(name for result in results for name in result.policies_in_order)
    notes = [*unreadable, *_notes(runs, results)]
    not_ranked = why_not_ranked(results, differences)
    groups = [
        *plan_groups(results, not_ranked, differences),
        *replay_groups(results, chosen_policies, not_ranked, differences),
        *size_groups(results, not_ranked),
        *error_groups(results, not_ranked),
    ]
    if not groups:
        notes.append("These kinds of runs have no figure in common.")
    return RunComparison(
        runs=tuple(map(_compared_run, runs, results, chosen_policies)),
        differences=differences,
        same=same,
        groups=tuple(groups),
        notes=tuple(notes),
        policies=tuple(names),
    )


def _compared_run(run: Run, result: StoredResult, policy: str) -> ComparedRun:
    """Return what a comparison states about a run: name, policy, recommendation and window."""
    window, recommended = result.window, result.recommended
    recommendation = recommended.sentence if recommended else ""
    return ComparedRun(
        run=run.pk,
        kind=run.get_kind_display(),
        name=run.name,
        policy=policy,
        label=result.policies[policy].label if policy in result.policies else "",
        answer=recommendation or result.headline or "",
        start=window.start if window else None,
        end=window.end if window else None,
    )


def _settings(runs: Sequence[Run]) -> tuple[list[dict[str, Any]], list[str]]:
    """Return each run's settings by address, and a sentence for each unreadable scenario.

    Settings are those of the run's copy of the scenario, its options, the versions of stored
    profiles that it used, and its trace.
    """
    by_run, unreadable = [], []
    for run in runs:
        values: dict[str, Any] = {}
        if run.document:
            try:
                values = values_by_address(parse(run.document, run.name or "scenario"))
            except ScenarioError:
                unreadable.append(
                    f"The scenario of run {run.pk} was written for another version of this program "
                    "and cannot be read. Its settings are not compared."
                )
        values |= {f"option {name}": value for name, value in run.options.items()}
        values |= {
            f"stored profile {name}, version": version.get("version")
            for name, version in (run.resolved.get("profiles") or {}).items()
        }
        if run.trace is not None:
            values["trace"] = run.trace.name
        by_run.append(values)
    return by_run, unreadable


def _as_simulated(
    settings: Mapping[str, Any], result: StoredResult, policy: str
) -> Iterator[tuple[str, Any]]:
    """Yield (address, value) of the settings that the run itself chose for ``policy``.

    These are the tuned parameters of the policy, and spare replicas if the recommended level of
    assurance is N+1. ``settings`` are those of the scenario.
    """
    if policy not in result.policies:
        return
    for setting in result.policies[policy].settings:
        key = f"policies[{policy}].{setting.what}"
        if not setting.where and key in settings:
            yield key, setting.value
    recommended = result.recommended
    if recommended is None or recommended.policy != policy:
        return
    level = result.assurance.get(recommended.assurance)
    if level and level.spare and not settings.get(SPARE):
        yield SPARE, N_PLUS_1.instances
        yield "objective.spare.by", "region"


def _notes(runs: Sequence[Run], results: Sequence[StoredResult]) -> Iterator[str]:
    """Yield notes if releases or simulated shares of the traffic differ between runs."""
    if len({run.code_version for run in runs}) > 1:
        yield "Different versions of Headroom made these runs. That alone may change figures."
    # With n equal cells of the fleet, a run replays 1/n of its traffic.
    cell_counts = set()
    for result in results:
        cells = result.replayed.cells if result.replayed else None
        cell_counts.add(cells or 1)
    if len(cell_counts) > 1:
        yield "The runs replayed different shares of their traffic (traffic.max_replayed)."


def why_not_ranked(results: Sequence[StoredResult], differences: Iterable[Setting]) -> str:
    """Return why the runs are not ranked: different traffic or windows; "" if they are."""
    different = [setting.key for setting in differences]
    traffic = [key for key in different if key.startswith("traffic.") and "max_replayed" not in key]
    if traffic or "trace" in different:
        return "Other traffic: the figures are not ranked."
    if len(windows(results)) > 1:
        return "Other windows: the figures are not ranked."
    return ""


def windows(results: Iterable[StoredResult]) -> set[tuple[datetime, datetime]]:
    """Return the distinct windows of the results, as (start, end)."""
    return {(result.window.start, result.window.end) for result in results if result.window}
