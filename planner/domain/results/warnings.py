"""Write the warnings to read before a policy is used, one sentence each.

They cover static fleets that do as well, missed limits, lost or unfinished requests, and
extrapolated profiles.
"""

from collections.abc import Sequence

from planner.domain.formats import counted, lower_first
from planner.domain.results.equal_attainment_savings import amount, largest_attainment_difference
from planner.domain.results.plan_versus_replay import differing_plan_usd
from planner.domain.sources import BEYOND
from planner.domain.study import PolicyRun

LEAST_SHARE_AFTER = 0.01  # of the cost: less cost after the window is not reported


def never_moves(run: PolicyRun) -> bool:
    """Return whether the plan keeps the same fleet in every period, without a reactive rule."""
    if run.plan is None or run.traits.may_exceed_plan:
        return False
    return bool((run.plan.target == run.plan.target[0]).all())


def static_beats_plan(by_name: dict[str, PolicyRun], planned: PolicyRun | None) -> list[str]:
    """Return a warning if a static fleet meets every SLO at no higher cost than the plan.

    ``planned`` is the run of the plan. The list is empty without one, or without requests.
    """
    if planned is None or not planned.summary.arrived:
        return []
    better = [run for run in by_name.values() if _beats_plan(run, planned)]
    if not better:
        return []
    # Prefer a deployable fleet, even if an oracle is cheaper.
    static = min(better, key=lambda run: (run.traits.uses_future_data, run.summary.cost_usd))
    count = sum(pool.initial for pool in static.fleet.pools)
    static_usd, plan_usd = amount(static.summary.cost_usd), amount(planned.summary.cost_usd)
    oracle = ", with future data" if static.traits.uses_future_data else ""
    fleet = (
        f"A static fleet of {counted(count, 'replica')} meets every SLO for "
        f"${static_usd} ({lower_first(static.label)}{oracle})"
    )
    if not planned.meets_slo:
        return [f"{fleet}. {planned.label} costs ${plan_usd} and misses an SLO."]
    if static_usd == plan_usd:
        return [f"{fleet}, no more than {lower_first(planned.label)}."]
    difference = _attainment_differs_sentence(static, planned)
    return [f"{fleet}. {planned.label} costs ${plan_usd}.{difference}"]


def _beats_plan(run: PolicyRun, planned: PolicyRun) -> bool:
    """Return whether a static fleet as safe as the plan meets every SLO at no higher cost."""
    if not run.traits.flat or not run.meets_slo or run.lacks_spare:
        return False
    if planned.n_plus_1 and run.n_plus_1 is False:
        return False
    if not planned.meets_slo:
        return True
    usd, plan_usd = round(run.summary.cost_usd, 2), round(planned.summary.cost_usd, 2)
    # A plan that never changes is such a fleet itself, so it is not beaten at equal cost.
    return usd < plan_usd or (usd == plan_usd and not never_moves(planned))


def no_spare(runs: Sequence[PolicyRun]) -> list[str]:
    """Return a warning that names the policies that meet every SLO but lack required spares."""
    names = [
        run.label
        for run in runs
        if run.lacks_spare and run.meets_slo and not run.traits.uses_future_data
    ]
    if not names:
        return []
    return [f"Without N+1, although every SLO is met here: {', '.join(names)}."]


def over_power(runs: Sequence[PolicyRun]) -> list[str]:
    """Return a warning on each region whose power limit a policy exceeded in the simulation."""
    above: dict[tuple[str, float], list[str]] = {}
    for run in runs:
        for region in run.fleet.regions:
            peak = run.summary.peak_kw.get(region.name, 0.0)
            if peak > region.site_kw:
                words = f"{run.label} ({peak:,.1f} kW)"
                above.setdefault((region.name, region.site_kw), []).append(words)
    return [
        f"Above the power limit of {name}, {limit:,.1f} kW: {', '.join(policies)}."
        for (name, limit), policies in above.items()
    ]


def _attainment_differs_sentence(static: PolicyRun, planned: PolicyRun) -> str:
    """Return a sentence, after a space, if the attainments of two runs differ; else ""."""
    difference = largest_attainment_difference(static, planned)
    if difference is None:
        return ""
    tier, static_share, plan_share = difference
    return (
        f" SLO attainment of {tier} differs: {static_share:.1%} with the static fleet"
        f"{_in_worst_hour(static, tier)} and {plan_share:.1%} with the plan"
        f"{_in_worst_hour(planned, tier)}."
    )


def _in_worst_hour(run: PolicyRun, tier: str) -> str:
    """Return a tier's attainment in its worst hour, in brackets; "" if it is not known."""
    share = run.summary.worst_hour.get(tier)
    return "" if share is None else f" ({share:.1%} in its worst hour)"


def plan_is_constant(planned: PolicyRun | None) -> list[str]:
    """Return a warning if a plan meets every SLO but never changes the fleet; else [].

    ``planned`` is the run of the plan; None: there is none.
    """
    if planned is None or not planned.meets_slo or not never_moves(planned):
        return []
    return [
        f"{planned.label} never changes in this window: a static fleet of the same size does the "
        "same."
    ]


def misses(runs: Sequence[PolicyRun]) -> list[str]:
    """Return a sentence for each policy that misses an SLO target."""
    sentences = []
    for run in runs:
        missed = missed_tiers(run)
        if missed:
            refused_starts = _refused_starts_sentence(run)
            sentences.append(f"{run.label} misses {'; '.join(missed)}{refused_starts}.")
    return sentences


def missed_tiers(run: PolicyRun) -> list[str]:
    """Return each tier whose SLO the run misses, in words: attainment, target, hours below it.

    A window below an hour has no hours to count.
    """
    targets = {tier.name: tier.attainment for tier in run.fleet.tiers}
    hours = run.summary.missed_hours if run.summary.duration_s >= 3600 else {}
    missed = []
    for tier, share in run.summary.slo_attainment.items():
        if share is not None and not run.summary.slo_met[tier]:
            in_hours = f" in {hours[tier]:,} h" if hours.get(tier) else ""
            missed.append(f"{tier}{in_hours} ({share:.2%}, target {100 * targets[tier]:.4g}%)")
    return missed


def _refused_starts_sentence(run: PolicyRun) -> str:
    """Return how many replicas did not start for lack of GPUs, with a remedy; "" if none."""
    if not run.refused_starts:
        return ""
    starts = counted(run.refused_starts, "start")
    return (
        f". No GPU or power was available for {starts}: raise the capacity of the regions, or cap "
        "running replicas (Power cap of the current fleet)"
    )


def losses(runs: Sequence[PolicyRun]) -> list[str]:
    """Return sentences on rejected and unfinished requests.

    Policies that lost equally many requests for one reason share a sentence.
    """
    labels: dict[str, list[str]] = {}  # of policies, by what they lost
    for run in runs:
        summary = run.summary
        of_all = f"of {summary.arrived:,} requests"
        lost = [
            f"rejected {count:,} {of_all}, because {reason}"
            for reason, count in summary.reject_reasons.items()
        ]
        without_reason = summary.rejected - sum(summary.reject_reasons.values())
        if without_reason > 0:
            lost.append(f"rejected {without_reason:,} {of_all}")
        if summary.unfinished:
            lost.append(f"left {summary.unfinished:,} {of_all} unfinished")
        for words in lost:
            labels.setdefault(words, []).append(run.label)
    return [f"{_policies_words(names, len(runs))} {words}." for words, names in labels.items()]


def _policies_words(labels: Sequence[str], all_count: int) -> str:
    """Return the first of these policies and the number of the others, in words.

    Return "Every policy" if they are all of the ``all_count`` (2 or more) policies.
    """
    if len(labels) == all_count > 1:
        return "Every policy"
    others = len(labels) - 1
    more = f" and {others} other {'policy' if others == 1 else 'policies'}" if others else ""
    return f"{labels[0]}{more}"


def unfinished_work_warnings(runs: Sequence[PolicyRun]) -> list[str]:
    """Return sentences on work that policies do after the window, and on its cost.

    The cost is left out if another sentence explains why the replay costs more than the plan.
    """
    sentences = []
    for run in runs:
        summary = run.summary
        notable_cost_after = summary.after_cost_usd > LEAST_SHARE_AFTER * summary.cost_usd
        if notable_cost_after and differing_plan_usd(run) is None:
            sentences.append(
                f"{run.label}: ${amount(summary.after_cost_usd)} of its "
                f"${amount(summary.cost_usd)} is for work left after the window."
            )
        if summary.not_due:
            sentences.append(
                f"{run.label}: {summary.not_due:,} requests were neither finished nor late at the "
                "end. SLO attainment leaves them out."
            )
    return sentences


def extrapolation_warning(runs: Sequence[PolicyRun], recommended: PolicyRun | None) -> list[str]:
    """Return a warning if too many simulated steps are outside a profile's measured range.

    Too many is a share of ``BEYOND`` or more. The warning names the ``recommended`` policy (None:
    there is none) if that has so many, else the policy with the largest share.
    """

    def share(run: PolicyRun) -> float:
        """Return the share of a run's iterations outside the measured range."""
        return run.summary.outside_iterations / max(run.summary.iterations, 1)

    worst = max(runs, key=share)
    if recommended is not None and share(recommended) >= BEYOND:
        worst = recommended
    if share(worst) < BEYOND:
        return []
    return [
        f"{worst.label}: {share(worst):.0%} of simulated steps are outside the measured range. "
        "Their latencies are extrapolated."
    ]
