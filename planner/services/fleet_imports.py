"""Write the fleet that runs today into a scenario, from the files that describe it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pydantic import Field, ValidationError

from planner.domain.options import RunOptions
from planner.errors import CatalogueError, ScenarioError
from planner.inputs import catalogue
from planner.inputs.catalogue.hardware import model_known_as
from planner.inputs.fleet import RunningPool, Trigger, read_fleet
from planner.inputs.fleet.pools import gpu_type
from planner.inputs.scenario.document import edit, outline, parse
from planner.inputs.scenario.schema import Scenario
from planner.inputs.scenario.user_facts import UserFacts
from planner.models import Scenario as StoredScenario
from planner.models import User
from planner.policies.choice import USUAL, policy_of
from planner.selectors.hardware import own_hardware
from planner.services.deployment_search import add_missing_gpus
from planner.services.scenarios import scenario_update

Row = dict[str, Any]
LABEL = "today"  # of the policy that is the autoscaler of today
NEEDS = {"model": "the model", "gpu": "the GPU type", "tp": "the GPUs of one replica"}
SHARES = ("memory", "gpu")  # measures with a target of at most 1


class PoolFacts(RunOptions):
    """Facts that the user states for pools whose file does not.

    ``replicas`` applies to every pool. Command line, REST API and page use this declaration.
    """

    model: str = Field("", title="Model", max_length=200)
    """Default model for rows without one."""
    gpu: str = Field("", title="GPU or cloud instance", max_length=200)
    """Default GPU type or cloud instance for rows without one."""
    tp: int | None = Field(None, title="GPUs per replica", ge=1, le=1024)
    """Default GPUs per replica for rows without a number."""
    region: str = Field("", title="Region", max_length=200)
    """Region of the scenario. Required if it has several."""
    replicas: int | None = Field(None, title="Replicas", ge=0, le=1_000_000)
    """Replicas of each pool. Default: as in the text."""


@dataclass(frozen=True, slots=True)
class ImportedFleet:
    """A scenario document with the imported fleet, its pools, and the assumptions made."""

    document: str
    pools: tuple[RunningPool, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _CompletePool:
    """A pool with every fact that a scenario needs, under the scenario's names."""

    pool: RunningPool
    model: str
    gpu: str
    region: str
    width: int  # GPUs of one replica of the scenario
    replicas: int
    notes: tuple[str, ...] = ()


NO_FACTS = PoolFacts()


def fleet_import(
    *,
    scenario: StoredScenario,
    user: User | None,
    text: str,
    name: str = "fleet",
    facts: PoolFacts = NO_FACTS,
    version: int | None = None,
) -> tuple[StoredScenario, ImportedFleet]:
    """Store a new version of ``scenario`` with the fleet that ``text`` describes.

    ``name`` is the file's name in messages. ``facts`` are those that the file does not state.
    ``version`` is the version that the user saw: if another is stored, the import is refused.
    None: do not check it. Returns the stored scenario and what was imported.
    """
    imported = with_fleet(scenario.document, text, name, facts)
    saved = scenario_update(
        scenario=scenario,
        user=user,
        document=imported.document,
        version=version,
        message=f"Fleet of today read from {name}"[:200],
    )
    return saved, imported


def with_fleet(document: str, text: str, name: str, facts: PoolFacts = NO_FACTS) -> ImportedFleet:
    """Return ``document`` with the fleet that ``text`` describes as ``fleet.today``.

    Rows of the same models and regions are replaced. Missing profiles, models and GPUs of regions
    are added. Raises ScenarioError for a fact that neither the file nor ``facts`` states.
    """
    read_pools = read_fleet(text, name)
    scenario, data = parse(document), outline(document)
    known = own_hardware()
    pools = [_complete(pool, scenario, facts, known, name) for pool in read_pools]
    imported = {(pool.model, pool.region) for pool in pools}
    today = (data.get("fleet") or {}).get("today") or []
    other_rows = [row for row in today if (row.get("model"), row.get("region")) not in imported]
    models = [row.name for row in scenario.models]
    new_models = dict.fromkeys(pool.model for pool in pools if pool.model not in models)
    profiles = list(_new_profiles(pools, scenario, known))
    notes = [note for pool in pools for note in pool.notes]
    changes: Row = {
        "fleet.today": [*other_rows, *_summed_rows([_today_row(pool) for pool in pools])],
        "regions": [
            _with_needed_gpus(row, region, [pool for pool in pools if pool.region == region.name])
            for row, region in zip(data["regions"], scenario.regions, strict=True)
        ],
    }
    if new_models:
        changes["models"] = [*data["models"], *new_models]
    if profiles:
        changes["profiles"] = [*data["profiles"], *profiles]
        notes += [f"profile added: {row['model']} on {row['gpu']}, estimated" for row in profiles]
    policy, note = _policy([pool.pool for pool in pools])
    if policy:
        policies = data.get("policies") or USUAL
        other = [p for p in policies if not (isinstance(p, Mapping) and p.get("label") == LABEL)]
        changes["policies"] = [*other, policy]
    written = edit(document, changes)
    parse(written, name)
    return ImportedFleet(
        written, tuple(read_pools), tuple(dict.fromkeys(filter(None, [*notes, note])))
    )


def _complete(
    pool: RunningPool, scenario: Scenario, facts: PoolFacts, user_facts: UserFacts, name: str
) -> _CompletePool:
    """Return ``pool`` with the missing ``facts``, under the scenario's names.

    ``user_facts`` is the user's own hardware, ``name`` the file's name in messages. Raises
    ScenarioError for a fact that is still missing.
    """
    location = f"{name}, {pool.name}" if pool.name else name
    if missing := [fact for fact in pool.needs if not getattr(facts, fact)]:
        raise ScenarioError(
            f"{location}: the file does not state {' and '.join(NEEDS[fact] for fact in missing)}. "
            f"Give {', '.join(missing)}."
        )
    model = _model(pool.model or facts.model, scenario, user_facts, location)
    gpu = _gpu(pool.gpu or facts.gpu, scenario, user_facts, location)
    notes = [f"{pool.name}: {note}" for note in pool.notes]
    engines, width = pool.engines, pool.width or facts.tp or 1  # engines of a pod, GPUs of each
    if pool.dp and engines == 1 and not _has_experts(model, user_facts):
        engines, width = pool.dp, max(1, width // pool.dp)
    # Launch lines and manifests only state the replicas at the start, so ``facts`` goes first.
    replicas = pool.replicas if facts.replicas is None else facts.replicas
    if replicas is None:
        replicas = 1 if pool.minimum is None else pool.minimum
        notes.append(f"{pool.name}: replicas are not stated; its least, {replicas}, is assumed")
    if engines > 1:
        notes.append(f"{pool.name}: each pod runs {engines} engines, which count as replicas")
    if pool.gpus and pool.gpus != width * engines:
        notes.append(
            f"{pool.name}: its pods ask for {pool.gpus} GPUs, its engine uses {width * engines}"
        )
    least, most = (n if n is None else n * engines for n in (pool.minimum, pool.maximum))
    return _CompletePool(
        pool=replace(pool, minimum=least, maximum=most),
        model=model,
        gpu=gpu,
        region=_region(pool.region, scenario, facts, location),
        width=width,
        replicas=replicas * engines,
        notes=tuple(notes),
    )


def _weight_precision(model: str) -> str:
    """Return the precision of a model's published weights; 16 bits for a user's own model."""
    try:
        return catalogue.published_precision(model)
    except CatalogueError:
        return "bf16"


def _model(name: str, scenario: Scenario, user_facts: UserFacts, location: str) -> str:
    """Return the scenario's name for a model; the catalogue's or user's if it has none."""
    for listed in scenario.models:
        if name == listed.name or model_known_as(name) == model_known_as(listed.name):
            return listed.name
    if name in user_facts.models:
        return name
    try:
        return catalogue.model_name(name)
    except CatalogueError as problem:
        raise ScenarioError(
            f"{location}: {problem} Add it to your models, or give model for all pools."
        ) from None


def _has_experts(model: str, user_facts: UserFacts) -> bool:
    """Return whether a model of the user or the catalogue is a mixture of experts."""
    spec = user_facts.models.get(model) or catalogue.models().get(model_known_as(model))
    return bool(spec and spec.shape and spec.shape.experts)


def _gpu(name: str, scenario: Scenario, user_facts: UserFacts, location: str) -> str:
    """Return the scenario's name for a GPU type; the catalogue's or user's if it has none."""
    if name in user_facts.gpus:
        return name
    try:
        canonical = catalogue.gpu_name(gpu_type(name))
    except CatalogueError as problem:
        raise ScenarioError(f"{location}: {problem} Add it to your GPUs.") from None
    listed = [row.gpu for row in scenario.profiles]
    for region in scenario.regions:
        listed += region.capacity
    return next((known_as for known_as in listed if gpu_type(known_as) == canonical), canonical)


def _region(name: str, scenario: Scenario, facts: PoolFacts, where: str) -> str:
    """Return the scenario's region for a pool; raise ScenarioError if it is unclear."""
    regions = [region.name for region in scenario.regions]
    for candidate in (facts.region, name):
        if candidate in regions:
            return candidate
    if len(regions) == 1 and not facts.region:
        return regions[0]
    stated = facts.region or name
    fault = f"the scenario has no region {stated}" if stated else "the region is not stated"
    raise ScenarioError(f"{where}: {fault}. Give region, one of {', '.join(regions)}.")


def _today_row(complete: _CompletePool) -> Row:
    """Return the row of ``fleet.today`` for a pool, without the fields that are not known."""
    pool = complete.pool
    row: Row = {
        "model": complete.model,
        "region": complete.region,
        "gpu": complete.gpu,
        "tp": complete.width,
        "precision": pool.precision or None,
        "role": pool.role if pool.role in ("prefill", "decode") else None,
        "replicas": complete.replicas,
        "minimum": pool.minimum,
        "maximum": pool.maximum and max(pool.maximum, complete.replicas),
    }
    return {key: value for key, value in row.items() if value is not None}


def _summed_rows(rows: Sequence[Row]) -> list[Row]:
    """Return the rows, with the replicas of rows that differ in nothing else added up."""
    joined: dict[tuple[Any, ...], Row] = {}
    counts = ("replicas", "minimum", "maximum")
    for row in rows:
        key = tuple(value for name, value in row.items() if name not in counts)
        if key in joined:
            for name in counts:
                if name in row or name in joined[key]:
                    joined[key][name] = sum(
                        part.get(name, part["replicas"]) for part in (joined[key], row)
                    )
        else:
            joined[key] = dict(row)
    return list(joined.values())


def _with_needed_gpus(row: Mapping[str, Any], region: Any, pools: Sequence[_CompletePool]) -> Row:
    """Return the ``row`` of a region with at least as many GPUs of each type as ``pools`` use.

    ``region`` is the same row, parsed.
    """
    used: dict[str, int] = {}
    for complete in pools:
        most_replicas = max(complete.replicas, complete.pool.maximum or 0)
        used[complete.gpu] = used.get(complete.gpu, 0) + most_replicas * complete.width
    changed = add_missing_gpus(row, region, used)
    capacity = dict(changed["capacity"])
    for gpu, count in used.items():
        capacity[gpu] = max(int(capacity[gpu]), count)
    return {**changed, "capacity": capacity}


def _new_profiles(
    pools: Sequence[_CompletePool], scenario: Scenario, user_facts: UserFacts
) -> Iterator[Row]:
    """Yield the profiles of ``pools`` that the scenario lacks: built-in ones, else estimated ones.

    ``user_facts`` is the user's own hardware.
    """
    present: set[tuple[str, str, int, str]] = {
        (row.model, row.gpu, row.tp * row.pp * row.attention_dp, row.role)
        for row in scenario.profiles
    }
    for complete in pools:
        pool = complete.pool
        role = pool.role if pool.role in ("prefill", "decode") else "mixed"
        key = (complete.model, complete.gpu, complete.width, role)
        if key in present:
            continue
        present.add(key)
        row = _speed_row(complete, experts=_has_experts(complete.model, user_facts))
        row |= {"role": None if role == "mixed" else role}
        row |= {"max_batch": pool.max_batch, "max_batch_tokens": pool.max_batch_tokens}
        yield {name: value for name, value in row.items() if value}


def _speed_row(complete: _CompletePool, *, experts: bool) -> Row:
    """Return the part of a profile that states its speed: measured if built in, else estimated."""
    pool = complete.pool
    parallelism = _parallelism(pool, complete.width, experts=experts)
    precision = pool.precision or _weight_precision(complete.model)
    row: Row = {"model": complete.model, "gpu": complete.gpu}
    built_in = (model_known_as(complete.model), complete.gpu, complete.width)
    only_tp = not parallelism.keys() - {"tp"}
    if built_in in catalogue.profiles() and precision == "bf16" and only_tp:
        return row | {"tp": complete.width}
    return row | {
        "kind": "roofline",
        **parallelism,
        "precision": None if precision == "bf16" else precision,
        "kv_precision": pool.kv_precision,
        "engine": pool.engine,
    }


def _parallelism(pool: RunningPool, width: int, *, experts: bool) -> Row:
    """Return how the model is split over the GPUs of a replica, as fields of a profile.

    ``width`` is the number of GPUs. ``experts``: the model is a mixture of experts.
    """
    pp, attention_dp = pool.pp or 1, 1
    if pool.expert_parallel or pool.attention_dp:
        attention_dp = pool.dp or 1
    if experts and width % attention_dp == 0 and (pool.expert_parallel or attention_dp > 1):
        experts_width = {"moe_ep" if pool.expert_parallel else "moe_tp": width}
        attention_width = {"attention_dp": attention_dp} if attention_dp > 1 else {}
        return {"tp": width // attention_dp} | experts_width | attention_width
    if pp > 1 and width % pp == 0:
        return {"tp": width // pp, "pp": pp}
    return {"tp": width}


def _policy(pools: Sequence[RunningPool]) -> tuple[Row | None, str]:
    """Return the autoscaler of ``pools`` as a policy, and a note.

    Without such a policy, return None and why; without an autoscaler, None and "".
    """
    if any(pool.autoscaler for pool in pools):
        return _autoscaler_policy(pools)
    triggers = {trigger for pool in pools for trigger in pool.triggers[:1]}
    if not triggers:
        return None, ""
    if len(triggers) > 1 or any(len(pool.triggers) > 1 for pool in pools):
        return None, "its autoscalers use several metrics. Add them as policies yourself"
    trigger = next(iter(triggers))
    row = _policy_row(trigger)
    if row is None:
        return None, f"no policy can simulate a trigger on {trigger.metric[:80]}"
    return row, ""


def _autoscaler_policy(pools: Sequence[RunningPool]) -> tuple[Row | None, str]:
    """Return the policy of autoscalers that set their own rule, such as Dynamo's, and a note or "".

    Prefill and decode pools may share one policy. If the pools have several, or if a setting cannot
    be simulated, return None and why.
    """
    joined: Row = {}
    for pool in pools:
        row = {key: value for key, value in (pool.autoscaler or {}).items() if value is not None}
        if not row or any(joined.get(key, value) != value for key, value in row.items()):
            return None, "its pools have several autoscalers. Add them as policies yourself"
        joined |= row
    try:
        policy_of(**joined)
    except ValidationError:
        return None, f"its {joined['name']} setting cannot be simulated"
    # The import leaves out a predictor that is not simulated, and Kalman is the default.
    replaced = joined["name"] == "dynamo-sla" and "predictor" not in joined
    note = "its predictor is simulated as a Kalman filter" if replaced else ""
    return {"label": LABEL, **joined}, note


def _policy_row(trigger: Trigger) -> Row | None:
    """Return the policy that simulates an autoscaler's trigger, or None."""
    measure, value = trigger.measure, trigger.value
    if not measure or not value or not trigger.per_replica:
        return None
    if measure in SHARES and value > 1:
        return None
    name = "keda" if trigger.kind in ("keda", "kserve") else "hpa"
    return {"name": name, "label": LABEL, "metric": measure, "target": value}
