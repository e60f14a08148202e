"""Check the names of models, tiers and regions in the sections forecast and objective."""

from collections.abc import Iterator

from planner.inputs.scenario.schema import Scenario

Path = tuple[str | int, ...]


def plan_problems(scenario: Scenario) -> Iterator[tuple[Path, str]]:
    """Yield unknown names and contradictions of plan settings, each with its path."""
    models = sorted(model.name for model in scenario.models)
    tiers = sorted(tier.name for tier in scenario.tiers)
    objective, priorities = scenario.objective, scenario.objective.priorities
    for kind, referred, names, where in (
        ("model", priorities.models, models, ("objective", "priorities", "models")),
        ("tier", priorities.tiers, tiers, ("objective", "priorities", "tiers")),
        ("tier", scenario.forecast.quantiles, tiers, ("forecast", "quantiles")),
    ):
        for name in referred:
            if name not in names:
                known_names = ", ".join(names)
                problem = f"{kind} {name!r} is not in this scenario, which has {known_names}"
                yield (*where, name), problem
    regions = sorted(region.name for region in scenario.regions)
    for home, targets in (objective.reroute or {}).items():
        for name in (home, *targets):
            if name not in regions:
                problem = f"region {name!r} is not in this scenario, which has {', '.join(regions)}"
                yield ("objective", "reroute", home), problem
    for tier in scenario.tiers:
        if tier.deferrable and tier.name in scenario.forecast.quantiles:
            yield (
                ("forecast", "quantiles", tier.name),
                f"tier {tier.name!r} may wait and is planned for by its deadline, or niw_buffer. "
                "Leave it out",
            )
    if objective.utility_usd is not None and not any(tier.utility > 0 for tier in scenario.tiers):
        problem = "no tier has a utility above 0. Give a tier one"
        yield ("objective", "utility_usd"), problem
    if objective.limited is None and (priorities.models or priorities.tiers):
        yield (
            ("objective", "priorities"),
            "priorities choose who is served where not all can be. Give limited with them",
        )
