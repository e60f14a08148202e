"""Find unknown names, duplicate names and missing counterparts in a scenario."""

from planner.inputs.scenario.faults import fault_problems
from planner.inputs.scenario.plan_references import plan_problems
from planner.inputs.scenario.schema import Scenario
from planner.policies.user_policies import policy_names

TELLS_APART = (
    "model", "gpu", "role", "tp", "pp", "attention_dp", "moe_tp", "moe_ep", "precision",
    "kv_precision", "lora_rank", "lora_active", "engine", "recv_interval", "name", "version",
    "power_cap",
)  # fmt: skip
Path = tuple[str | int, ...]


def references(scenario: Scenario) -> list[tuple[Path, str]]:
    """Return problems that concern several sections of a scenario, each with its path."""
    problems: list[tuple[Path, str]] = []
    models = {model.name for model in scenario.models}
    regions = {region.name for region in scenario.regions}
    tiers = {tier.name for tier in scenario.tiers}
    gpus = {profile.gpu for profile in scenario.profiles}

    def check_known(where: Path, what: str, name: str | None, names: set[str]) -> None:
        """Record a problem if ``name`` is not one of ``names``."""
        if name is not None and name not in names:
            known_names = ", ".join(sorted(names))
            problem = f"{what} {name!r} is not in this scenario, which has {known_names}"
            problems.append((where, problem))

    for section in ("gpus", "models", "regions", "tiers"):
        seen: set[str] = set()
        for i, item in enumerate(getattr(scenario, section)):
            if item.name in seen:
                problems.append(((section, i), f"{item.name!r} is there twice. Keep one"))
            seen.add(item.name)
    problems += _policy_problems(scenario)
    for i, profile in enumerate(scenario.profiles):
        check_known(("profiles", i, "model"), "model", profile.model, models)
    problems += _profile_problems(scenario)
    for model in sorted(models - {profile.model for profile in scenario.profiles}):
        problems.append((("profiles",), f"model {model!r} has no profile. Add one"))
    for i, region in enumerate(scenario.regions):
        for other in region.latency_ms:
            check_known(("regions", i, "latency_ms", other), "region", other, regions)
        for name in region.topology.gpus_per_node if region.topology else ():
            check_known(("regions", i, "topology", "gpus_per_node", name), "GPU", name, gpus)
        for name in region.spot:
            check_known(("regions", i, "spot", name), "GPU", name, gpus)
        for name in region.committed:
            check_known(("regions", i, "committed", name), "GPU", name, gpus)
        if not gpus & set(region.capacity):
            problems.append(
                (("regions", i, "capacity"), "none of these GPUs has a profile in this scenario")
            )
    for i, source in enumerate(scenario.traffic.sources):
        check_known(("traffic", "sources", i, "model"), "model", source.model, models)
        for name in source.regions:
            check_known(("traffic", "sources", i, "regions", name), "region", name, regions)
        for name in source.tiers:
            check_known(("traffic", "sources", i, "tiers", name), "tier", name, tiers)
    problems += _serving_problems(scenario, models)
    problems += fault_problems(scenario)
    problems += plan_problems(scenario)
    for i, service in enumerate(scenario.placement.services):
        path: Path = ("placement", "services", i)
        check_known((*path, "model"), "model", service.model, models)
        for name in service.fallbacks:
            check_known((*path, "fallbacks"), "GPU", name, gpus)
    for i, replicas in enumerate(scenario.fleet.today):
        path = ("fleet", "today", i)
        check_known((*path, "model"), "model", replicas.model, models)
        check_known((*path, "region"), "region", replicas.region, regions)
        check_known((*path, "gpu"), "GPU", replicas.gpu, gpus)
        offers = {region.name: region.spot for region in scenario.regions}
        if replicas.spot and replicas.gpu not in offers.get(replicas.region, {}):
            problem = f"region {replicas.region!r} does not offer {replicas.gpu} as spot. Add it "
            problems.append(((*path, "spot"), problem + "there under spot, or leave this out"))
        if replicas.maximum is not None and replicas.maximum < (replicas.minimum or 0):
            problems.append(((*path, "maximum"), "the maximum is below the minimum. Raise it"))
        if replicas.lent and scenario.fleet.starts is None:
            problems.append(((*path, "lent"), "lent replicas need fleet.starts. Add it"))
        if replicas.maximum is not None and replicas.maximum < replicas.replicas:
            problems.append(
                ((*path, "maximum"), "the maximum is below the replicas of today. Raise it")
            )
    if all(tier.deferrable for tier in scenario.tiers):
        problems.append((("tiers",), "every tier is deferrable; at least one must not be"))
    if (
        any(policy.traits.needs_current_fleet for policy in scenario.policies)
        and not scenario.fleet.today
    ):
        problems.append((("policies",), "policy 'today' needs fleet.today. Add the current fleet"))
    return problems


def _policy_problems(scenario: Scenario) -> list[tuple[Path, str]]:
    """Return duplicate policies, unknown names in timetables and an unknown baseline."""
    problems: list[tuple[Path, str]] = []
    seen: set[str] = set()
    names_by_field: dict[str, set[str]] = {
        "model": {model.name for model in scenario.models},
        "region": {region.name for region in scenario.regions},
        "gpu": {profile.gpu for profile in scenario.profiles},
        "role": {profile.role for profile in scenario.profiles},
    }
    for i, policy in enumerate(scenario.policies):
        if policy.key in seen:
            problem = f"{policy.name!r} is there twice. Keep one, or give each a label"
            problems.append((("policies", i), problem))
        seen.add(policy.key)
        for j, step in enumerate(getattr(policy, "timetable", ())):
            for field, names in names_by_field.items():
                value = getattr(step, field)
                if value is not None and value not in names:
                    known_names = ", ".join(sorted(names))
                    problems.append(
                        (
                            ("policies", i, "timetable", j, field),
                            f"{field} {value!r} is not in this scenario, which has {known_names}",
                        )
                    )
    baseline = scenario.objective.baseline
    if baseline is not None and baseline not in {*seen, *policy_names()}:
        problems.append(
            (
                ("objective", "baseline"),
                f"there is no policy {baseline!r}. Choose one of this scenario's, or from "
                f"{', '.join(policy_names())}",
            )
        )
    return problems


def _profile_problems(scenario: Scenario) -> list[tuple[Path, str]]:
    """Return duplicate profiles, and prefill or decode profiles without the other role."""
    problems: list[tuple[Path, str]] = []
    have: set[tuple[object, ...]] = set()
    for i, profile in enumerate(scenario.profiles):
        same: tuple[object, ...] = tuple(getattr(profile, field) for field in TELLS_APART)
        if profile.attention_ffn is not None:
            same += (profile.attention_ffn.attention, profile.attention_ffn.ffn)
        if same in have:
            words = f"{profile.model} on {profile.gpu} is there twice. Keep one, or let tp, "
            problems.append((("profiles", i), words + "precision or role tell them apart"))
        have.add(same)
        other = {"prefill": "decode", "decode": "prefill"}.get(profile.role)
        roles = {section.role for section in scenario.profiles if section.model == profile.model}
        if other and other not in roles:
            words = f"{profile.model} has a {profile.role} profile and none with role: {other}"
            problems.append((("profiles", i, "role"), f"{words}. Add one"))
    return problems


def _serving_problems(scenario: Scenario, models: set[str]) -> list[tuple[Path, str]]:
    """Return unknown or duplicate models in serving rows, and contradictory routing settings."""
    problems: list[tuple[Path, str]] = []
    seen: set[str | None] = set()
    have = ", ".join(sorted(models))
    for i, row in enumerate(scenario.serving):
        if row.model is not None and row.model not in models:
            words = f"model {row.model!r} is not in this scenario, which has {have}"
            problems.append((("serving", i, "model"), words))
        if row.model in seen:
            words = f"{row.model or 'the row for all models'} is there twice. Keep one"
            problems.append((("serving", i), words))
        seen.add(row.model)
    routing = scenario.fleet.routing
    if routing.release_two_below > routing.release_one_below:
        words = "above release_one_below. Lower it to release_one_below or less"
        problems.append((("fleet", "routing", "release_two_below"), words))
    return problems
