"""Find faults that concern several sections of a scenario, such as unknown or repeated names.

For an unknown key of the file, suggest the right one.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from difflib import get_close_matches
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import BaseModel

from planner.inputs.scenario.schema import Profile, Scenario
from planner.policies.user_policies import policy_names

# Fields of a profile; two rows of ``profiles`` must differ in one of them.
IDENTIFYING_FIELDS = (
    "model", "gpu", "role", "tp", "pp", "attention_dp", "moe_tp", "moe_ep", "precision",
    "kv_precision", "lora_rank", "lora_active", "engine", "recv_interval", "name", "version",
    "power_cap",
)  # fmt: skip
# Places where names of models, regions, tiers, GPU types and roles occur. ``[]`` stands for each
# entry of a list, and ``{}`` for each key of a mapping.
PLACES = {
    "model": "profiles[].model traffic.sources[].model serving[].model faults[].model "
    "objective.priorities.models{} placement.services[].model fleet.today[].model "
    "policies[].timetable[].model",
    "region": "regions[].latency_ms{} traffic.sources[].regions{} faults[].region "
    "objective.reroute{} objective.reroute{}{} fleet.today[].region policies[].timetable[].region",
    "tier": "traffic.sources[].tiers{} objective.priorities.tiers{} forecast.quantiles{}",
    "GPU": "regions[].topology.gpus_per_node{} regions[].spot{} regions[].committed{} "
    "faults[].gpu placement.services[].fallbacks[] fleet.today[].gpu policies[].timetable[].gpu",
    "role": "faults[].role policies[].timetable[].role",
}
STEP = re.compile(r"\[\]|\{\}|\w+")
Path = tuple[str | int, ...]  # keys and indices from the root of the scenario down
Problems = Iterator[tuple[Path, str]]
MOST_LISTED = 30  # keys in a message if none is similar


def references(scenario: Scenario) -> list[tuple[Path, str]]:
    """Return the faults that concern several sections of a scenario: (path, sentence)."""
    rules = (
        _unknown_names, _duplicates, _profiles, _regions, _faults, _today, _plan, _policies,
    )  # fmt: skip
    return [problem for rule in rules for problem in rule(scenario)]


def _unknown_names(scenario: Scenario) -> Problems:
    """Yield each name in ``PLACES`` that the scenario lacks."""
    known: dict[str, set[str]] = {
        "model": {model.name for model in scenario.models},
        "region": {region.name for region in scenario.regions},
        "tier": {tier.name for tier in scenario.tiers},
        "GPU": {profile.gpu for profile in scenario.profiles},
        "role": {profile.role for profile in scenario.profiles},
    }
    for kind, places in PLACES.items():
        known_names = ", ".join(sorted(known[kind]))
        for place in places.split():
            for path, name in _names_at(scenario, STEP.findall(place)):
                if name not in known[kind]:
                    yield path, f"{kind} {name!r} is not in this scenario, which has {known_names}"


def _names_at(value: Any, steps: Sequence[str], path: Path = ()) -> Iterator[tuple[Path, str]]:
    """Yield (path, name) of each name that ``steps`` lead to in ``value``.

    ``steps`` are the parts of an entry of PLACES, such as ["profiles", "[]", "model"]. ``path`` is
    that of ``value`` itself.
    """
    if value is None:
        return
    if not steps:
        yield path, value
        return
    step, rest = steps[0], steps[1:]
    if step == "[]":
        for i, entry in enumerate(value):
            yield from _names_at(entry, rest, (*path, i))
    elif step == "{}":
        for key, entry in value.items():
            yield from _names_at(entry if rest else key, rest, (*path, key))
    else:
        yield from _names_at(getattr(value, step, None), rest, (*path, step))


def _repeated_keys(entries: Iterable[Any], key: Callable[[Any], Any]) -> Iterator[tuple[int, Any]]:
    """Yield (index, entry) of each entry whose ``key`` equals that of an earlier entry."""
    seen: set[Any] = set()
    for i, entry in enumerate(entries):
        if key(entry) in seen:
            yield i, entry
        seen.add(key(entry))


def _profile_key(profile: Profile) -> tuple[Any, ...]:
    """Return the values that identify a profile; two profiles with equal values are duplicates."""
    split = profile.attention_ffn
    sides = (split.attention, split.ffn) if split else ()
    return *(getattr(profile, field) for field in IDENTIFYING_FIELDS), *sides


def _duplicates(scenario: Scenario) -> Problems:
    """Yield entries with the name of an earlier one, and profiles with the same arrangement."""
    for section in ("gpus", "models", "regions", "tiers"):
        for i, entry in _repeated_keys(getattr(scenario, section), lambda entry: entry.name):
            yield (section, i), f"{entry.name!r} is listed twice. Keep one"
    for i, policy in _repeated_keys(scenario.policies, lambda policy: policy.key):
        yield ("policies", i), f"{policy.name!r} is listed twice. Keep one, or give each a label"
    for i, row in _repeated_keys(scenario.serving, lambda row: row.model):
        yield ("serving", i), f"{row.model or 'the row for all models'} is listed twice. Keep one"
    for i, profile in _repeated_keys(scenario.profiles, _profile_key):
        yield (
            ("profiles", i),
            f"{profile.model} on {profile.gpu} is listed twice. Keep one, or let tp, precision or "
            "role tell them apart",
        )


def _profiles(scenario: Scenario) -> Problems:
    """Yield models without a profile, and prefill or decode profiles without the other role."""
    model_roles = {(profile.model, profile.role) for profile in scenario.profiles}
    with_profile = {model for model, _ in model_roles}
    for model in sorted({model.name for model in scenario.models} - with_profile):
        yield ("profiles",), f"model {model!r} has no profile. Add one"
    for i, profile in enumerate(scenario.profiles):
        other_role = {"prefill": "decode", "decode": "prefill"}.get(profile.role)
        if other_role and (profile.model, other_role) not in model_roles:
            words = f"{profile.model} has a {profile.role} profile and none with role: {other_role}"
            yield ("profiles", i, "role"), f"{words}. Add one"


def _regions(scenario: Scenario) -> Problems:
    """Yield regions without a GPU type that has a profile."""
    gpus = {profile.gpu for profile in scenario.profiles}
    for i, region in enumerate(scenario.regions):
        if not gpus & region.capacity.keys():
            yield ("regions", i, "capacity"), "none of these GPUs has a profile in this scenario"


def _faults(scenario: Scenario) -> Problems:
    """Yield simulated faults that would happen after the end of the window."""
    window_s = scenario.horizon.duration_s
    for i, fault in enumerate(scenario.faults):
        for field in ("at_s", "from_s"):
            if window_s is not None and getattr(fault, field, 0.0) >= window_s:
                words = f"the window ends before (horizon.duration_s: {window_s:g}). Move it"
                yield ("faults", i, field), words


def _today(scenario: Scenario) -> Problems:
    """Yield contradictions within the rows of the present fleet, and in its routing."""
    offers = {region.name: region.spot for region in scenario.regions}
    for i, row in enumerate(scenario.fleet.today):
        path: Path = ("fleet", "today", i)
        if row.spot and row.gpu not in offers.get(row.region, {}):
            yield (
                (*path, "spot"),
                f"region {row.region!r} does not offer {row.gpu} as spot. Add it there under spot, "
                "or leave this out",
            )
        if row.lent and scenario.fleet.starts is None:
            yield (*path, "lent"), "lent replicas need fleet.starts. Add it"
        if row.maximum is not None and row.maximum < (row.minimum or 0):
            yield (*path, "maximum"), "the maximum is below the minimum. Raise it"
        if row.maximum is not None and row.maximum < row.replicas:
            yield (*path, "maximum"), "the maximum is below the replicas of today. Raise it"
    routing = scenario.fleet.routing
    if routing.release_two_below > routing.release_one_below:
        words = "above release_one_below. Lower it to release_one_below or less"
        yield ("fleet", "routing", "release_two_below"), words


def _plan(scenario: Scenario) -> Problems:
    """Yield contradictions between tiers, forecast and objective."""
    objective, priorities = scenario.objective, scenario.objective.priorities
    for tier in scenario.tiers:
        if tier.deferrable and tier.name in scenario.forecast.quantiles:
            yield (
                ("forecast", "quantiles", tier.name),
                f"tier {tier.name!r} is deferrable and is planned by its deadline, or niw_buffer. "
                "Leave it out",
            )
    if objective.utility_usd is not None and not any(tier.utility > 0 for tier in scenario.tiers):
        yield ("objective", "utility_usd"), "no tier has a utility above 0. Give a tier one"
    if objective.limited is None and (priorities.models or priorities.tiers):
        yield (
            ("objective", "priorities"),
            "priorities decide who is served if capacity is short. Give limited with them",
        )
    if all(tier.deferrable for tier in scenario.tiers):
        yield ("tiers",), "every tier is deferrable; at least one must not be"


def _policies(scenario: Scenario) -> Problems:
    """Yield policies that lack what they need, and an unknown baseline."""
    needs_today = any(policy.traits.needs_current_fleet for policy in scenario.policies)
    if needs_today and not scenario.fleet.today:
        yield ("policies",), "policy 'today' needs fleet.today. Add the current fleet"
    baseline, names = scenario.objective.baseline, policy_names()
    if baseline is not None and baseline not in {p.key for p in scenario.policies} | {*names}:
        yield (
            ("objective", "baseline"),
            f"there is no policy {baseline!r}. Choose one of this scenario's, or from "
            f"{', '.join(names)}",
        )


def remedy(scenario: type[BaseModel], where: Sequence[str | int]) -> str:
    """Return a sentence with the most similar key, or the known ones, for an unknown key."""
    *section, unknown_key = where
    known = sorted(set(_keys(scenario, section)))
    similar = get_close_matches(str(unknown_key), known, n=1, cutoff=0.7)
    if similar:
        return f"this key is not known. Use {similar[0]}, or remove it"
    if not known:
        return "this key is not known. Remove it"
    listed = ", ".join(known[:MOST_LISTED]) + (", ..." if known[MOST_LISTED:] else "")
    return f"this key is not known. Remove it, or choose from {listed}"


def _keys(root: type[BaseModel], section: Iterable[str | int]) -> Iterator[str]:
    """Yield the keys that may occur at the path ``section`` of a file of the type ``root``."""
    models = list(_sections(root))
    for step in section:
        fields = [model.model_fields.get(str(step)) for model in models]
        annotations = [field.annotation for field in fields if field is not None]
        if annotations:
            models = [model for annotation in annotations for model in _sections(annotation)]
            continue
        # The step is an index of a list, a key of a mapping, or the tag of one of several types.
        tagged = []
        for subclass in (subclass for model in models for subclass in _subclasses(model)):
            types = [field.annotation for field in subclass.model_fields.values()]
            tags = [tag for type in types if get_origin(type) is Literal for tag in get_args(type)]
            if step in (subclass.__name__, *tags):
                tagged.append(subclass)
        models = tagged or models
    for model in models:
        yield from model.model_fields


def _sections(annotation: Any) -> Iterator[type[BaseModel]]:
    """Yield the models that a value of this type can be, through lists, mappings and unions."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    elif get_origin(annotation) is Annotated:
        yield from _sections(get_args(annotation)[0])
    elif get_origin(annotation) is not Literal:
        for part in get_args(annotation):
            yield from _sections(part)


def _subclasses(model: type[BaseModel]) -> Iterator[type[BaseModel]]:
    """Yield a model and all its subclasses."""
    yield model
    for subclass in model.__subclasses__():
        yield from _subclasses(subclass)
