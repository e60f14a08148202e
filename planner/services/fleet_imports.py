"""Write the fleet that runs today into a scenario, from the files that describe it."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pydantic import Field, ValidationError

from planner.domain.options import RunOptions
from planner.errors import CatalogueError, ScenarioError
from planner.inputs import catalogue
from planner.inputs.catalogue.hardware import model_known_as
from planner.inputs.fleet import RunningPool, read_fleet
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
LABEL = "today"  # label of the policy that simulates the present autoscaler
NEEDS = {"model": "the model", "gpu": "the GPU type", "tp": "the GPUs of one replica"}
# Metrics that are shares: a target above 1 has another unit, or can never be reached.
SHARES = ("memory", "gpu")


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
    """Replicas of each pool. Default: as stated in the text."""


@dataclass(frozen=True, slots=True)
class ImportedFleet:
    """A scenario with an imported fleet."""

    document: str  # YAML of the scenario
    pools: tuple[RunningPool, ...]  # as the file describes them
    notes: tuple[str, ...]  # assumptions made


@dataclass(frozen=True, slots=True)
class _CompletePool:
    """A pool of the file with every fact that a scenario needs, under the scenario's names.

    A replica of the scenario is one engine. A pod of the file may run several.
    """

    running: RunningPool  # as read, but with limits in replicas instead of pods
    model: str
    gpu: str
    region: str
    gpus_per_replica: int
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

    Returns the stored scenario and what was imported. ``text`` is the content of a file, which
    messages call ``name``. ``facts`` supply what it does not state. ``version`` is the version that
    the user saw; raises VersionConflict if another one is stored. None: do not check it.
    """
    imported = with_fleet(scenario.document, text, name, facts)
    saved = scenario_update(
        scenario=scenario,
        user=user,
        document=imported.document,
        version=version,
        message=f"Current fleet read from {name}"[:200],
    )
    return saved, imported


def with_fleet(document: str, text: str, name: str, facts: PoolFacts = NO_FACTS) -> ImportedFleet:
    """Return the scenario ``document`` with the fleet that ``text`` describes as ``fleet.today``.

    Rows of ``fleet.today`` with the same model and region are replaced. Missing profiles, models
    and GPUs of regions are added. Raises ScenarioError for a fact that neither the file nor
    ``facts`` states. ``name`` is what messages call the file.
    """
    read_pools = read_fleet(text, name)
    scenario, data = parse(document), outline(document)
    user_facts = own_hardware()
    pools = [_complete(pool, scenario, facts, user_facts, name) for pool in read_pools]
    profiles = list(_new_profiles(pools, scenario, user_facts))
    policy, policy_note = _policy([pool.running for pool in pools])
    notes = [note for pool in pools for note in pool.notes]
    notes += [f"profile added: {row['model']} on {row['gpu']}, estimated" for row in profiles]
    if policy_note:
        notes.append(policy_note)
    changes = _changed_sections(data, scenario, pools)
    if profiles:
        changes["profiles"] = [*data["profiles"], *profiles]
    if policy:
        other_policies = [
            row
            for row in data.get("policies") or USUAL
            if isinstance(row, str) or row.get("label") != LABEL
        ]
        changes["policies"] = [*other_policies, policy]
    changed = edit(document, changes)
    parse(changed, name)
    return ImportedFleet(changed, tuple(read_pools), tuple(dict.fromkeys(notes)))


def _changed_sections(data: Row, scenario: Scenario, pools: Sequence[_CompletePool]) -> Row:
    """Return the changed sections of the scenario ``data`` with the imported ``pools``, by address.

    They are the present fleet, the regions, which get the GPUs that pools use at their maximum, and
    the models if there are new ones.
    """
    regions = []
    for row, region in zip(data["regions"], scenario.regions, strict=True):
        most_gpus: Counter[str] = Counter()  # GPUs by type at the maximum of each pool
        for pool in pools:
            if pool.region == region.name:
                most_replicas = max(pool.replicas, pool.running.maximum or 0)
                most_gpus[pool.gpu] += most_replicas * pool.gpus_per_replica
        changed = add_missing_gpus(row, region, most_gpus)
        capacity = dict(changed["capacity"])
        for gpu, count in most_gpus.items():
            capacity[gpu] = max(int(capacity[gpu]), count)
        regions.append({**changed, "capacity": capacity})
    imported = {(pool.model, pool.region) for pool in pools}
    today = (data.get("fleet") or {}).get("today") or []
    other_rows = [row for row in today if (row.get("model"), row.get("region")) not in imported]
    changes: Row = {
        "fleet.today": [*other_rows, *_summed_rows([_today_row(pool) for pool in pools])],
        "regions": regions,
    }
    listed = {row.name for row in scenario.models}
    new_models = [pool.model for pool in pools if pool.model not in listed]
    if new_models:
        changes["models"] = [*data["models"], *dict.fromkeys(new_models)]
    return changes


def _complete(
    pool: RunningPool, scenario: Scenario, facts: PoolFacts, user_facts: UserFacts, name: str
) -> _CompletePool:
    """Return ``pool`` completed by ``facts``, under the scenario's names.

    ``user_facts`` has the user's own GPUs and models. ``name`` is what messages call the file.
    Raises ScenarioError for a fact that is still missing.
    """
    location = f"{name}, {pool.name}" if pool.name else name  # for messages
    missing = [fact for fact in pool.needs if not getattr(facts, fact)]
    if missing:
        raise ScenarioError(
            f"{location}: the file does not state {' and '.join(NEEDS[fact] for fact in missing)}. "
            f"Give {', '.join(missing)}."
        )
    model = _model(pool.model or facts.model, scenario, user_facts, location)
    gpu = _gpu(pool.gpu or facts.gpu, scenario, user_facts, location)
    # A pod runs one or more engines. Each of them counts as a replica.
    engines, gpus_per_engine = _engines(pool, facts, _has_experts(model, user_facts))
    # Launch lines and manifests only state the replicas at the start, so ``facts`` goes first.
    stated_pods = pool.replicas if facts.replicas is None else facts.replicas
    least_pods = 1 if pool.minimum is None else pool.minimum
    pods = least_pods if stated_pods is None else stated_pods
    assumed_pods = least_pods if stated_pods is None else None
    # The limits count pods.
    minimum = None if pool.minimum is None else pool.minimum * engines
    maximum = None if pool.maximum is None else pool.maximum * engines
    return _CompletePool(
        running=replace(pool, minimum=minimum, maximum=maximum),
        model=model,
        gpu=gpu,
        region=_region(pool.region, scenario, facts, location),
        gpus_per_replica=gpus_per_engine,
        replicas=pods * engines,
        notes=tuple(_assumption_notes(pool, engines, gpus_per_engine, assumed_pods)),
    )


def _engines(pool: RunningPool, facts: PoolFacts, has_experts: bool) -> tuple[int, int]:
    """Return the engines of a pod, and the GPUs of each."""
    gpus = pool.width or facts.tp or 1
    # Without experts, the ranks of data parallelism are independent engines.
    if pool.dp and pool.engines == 1 and not has_experts:
        return pool.dp, max(1, gpus // pool.dp)
    return pool.engines, gpus


def _assumption_notes(
    pool: RunningPool, engines: int, gpus_per_engine: int, assumed_pods: int | None
) -> Iterator[str]:
    """Yield what is assumed of a pool, each of whose pods runs ``engines`` engines.

    ``assumed_pods`` is the assumed number of its pods; None if the number is stated.
    """
    for note in pool.notes:
        yield f"{pool.name}: {note}"
    if assumed_pods is not None:
        yield f"{pool.name}: replicas are not stated; its least, {assumed_pods}, is assumed"
    if engines > 1:
        yield f"{pool.name}: each pod runs {engines} engines, which count as replicas"
    used_gpus = gpus_per_engine * engines
    if pool.gpus and pool.gpus != used_gpus:
        yield f"{pool.name}: its pods ask for {pool.gpus} GPUs, its engine uses {used_gpus}"


def _model(name: str, scenario: Scenario, user_facts: UserFacts, location: str) -> str:
    """Return the scenario's name for the model ``name``, else the user's or the catalogue's.

    ``location`` is the file and pool. Raises ScenarioError, which names it, for an unknown model.
    """
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
    """Return the user's name for the GPU type ``name``, else the scenario's or the catalogue's.

    ``location`` is the file and pool. Raises ScenarioError, which names it, for an unknown type.
    """
    if name in user_facts.gpus:
        return name
    try:
        canonical = catalogue.gpu_name(gpu_type(name))
    except CatalogueError as problem:
        raise ScenarioError(f"{location}: {problem} Add it to your GPUs.") from None
    scenario_gpus = [row.gpu for row in scenario.profiles]
    for region in scenario.regions:
        scenario_gpus += region.capacity
    return next((gpu for gpu in scenario_gpus if gpu_type(gpu) == canonical), canonical)


def _region(name: str, scenario: Scenario, facts: PoolFacts, location: str) -> str:
    """Return the scenario's region for a pool in region ``name``, "" if the file states none.

    Raises ScenarioError, which names the ``location`` (file and pool), if it is unclear.
    """
    regions = [region.name for region in scenario.regions]
    for candidate in (facts.region, name):
        if candidate in regions:
            return candidate
    if len(regions) == 1 and not facts.region:
        return regions[0]
    stated = facts.region or name
    fault = f"the scenario has no region {stated}" if stated else "the region is not stated"
    raise ScenarioError(f"{location}: {fault}. Give region, one of {', '.join(regions)}.")


def _today_row(complete: _CompletePool) -> Row:
    """Return the row of ``fleet.today`` for a pool, without the fields that are not known."""
    pool = complete.running
    maximum = pool.maximum
    if maximum:  # a limit below the replicas that run is not valid
        maximum = max(maximum, complete.replicas)
    row: Row = {
        "model": complete.model,
        "region": complete.region,
        "gpu": complete.gpu,
        "tp": complete.gpus_per_replica,
        "precision": pool.precision or None,
        "role": pool.role if pool.role in ("prefill", "decode") else None,
        "replicas": complete.replicas,
        "minimum": pool.minimum,
        "maximum": maximum,
    }
    return {key: value for key, value in row.items() if value is not None}


def _summed_rows(rows: Sequence[Row]) -> list[Row]:
    """Return the rows; rows that differ only in numbers of replicas become one, with their sum."""
    counts = ("replicas", "minimum", "maximum")
    rows_by_pool: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        pool = tuple(value for name, value in row.items() if name not in counts)
        rows_by_pool.setdefault(pool, []).append(row)
    summed_rows = []
    for pool_rows in rows_by_pool.values():
        summed = dict(pool_rows[0])
        for name in counts:
            if any(name in row for row in pool_rows):
                # A row without a minimum or maximum does not scale.
                summed[name] = sum(row.get(name, row["replicas"]) for row in pool_rows)
        summed_rows.append(summed)
    return summed_rows


def _new_profiles(
    pools: Sequence[_CompletePool], scenario: Scenario, user_facts: UserFacts
) -> Iterator[Row]:
    """Yield the rows of ``profiles`` for ``pools`` that the scenario lacks.

    They are built-in profiles, else estimated ones. ``user_facts`` has the user's own GPUs and
    models.
    """
    present: set[tuple[str, str, int, str]] = set()  # (model, GPU type, GPUs per replica, role)
    for profile in scenario.profiles:
        gpus = profile.tp * profile.pp * profile.attention_dp
        present.add((profile.model, profile.gpu, gpus, profile.role))
    for complete in pools:
        pool = complete.running
        role = pool.role if pool.role in ("prefill", "decode") else "mixed"
        key = (complete.model, complete.gpu, complete.gpus_per_replica, role)
        if key in present:
            continue
        present.add(key)
        row: Row = {
            "model": complete.model,
            "gpu": complete.gpu,
            **_speed_fields(complete, experts=_has_experts(complete.model, user_facts)),
            "role": None if role == "mixed" else role,
            "max_batch": pool.max_batch,
            "max_batch_tokens": pool.max_batch_tokens,
        }
        yield {name: value for name, value in row.items() if value}


def _speed_fields(complete: _CompletePool, *, experts: bool) -> Row:
    """Return the fields of a profile row that decide on its speed, besides model and GPU type.

    The row stands for the built-in measured profile if there is one, else for a roofline estimate.
    ``experts``: the model is a mixture of experts.
    """
    pool, built_in_name = complete.running, model_known_as(complete.model)
    parallelism = _parallelism(pool, complete.gpus_per_replica, experts=experts)
    precision = pool.precision or "bf16"
    if not pool.precision and built_in_name in catalogue.models():
        precision = catalogue.published_precision(complete.model)
    key = (built_in_name, complete.gpu, complete.gpus_per_replica)
    is_measured = key in catalogue.profiles()
    if is_measured and precision == "bf16" and parallelism.keys() == {"tp"}:
        return parallelism
    return {
        "kind": "roofline",
        **parallelism,
        "precision": None if precision == "bf16" else precision,
        "kv_precision": pool.kv_precision,
        "engine": pool.engine,
    }


def _parallelism(pool: RunningPool, gpus: int, *, experts: bool) -> Row:
    """Return how the model is split over the ``gpus`` GPUs of a replica, as fields of a profile.

    ``experts``: the model is a mixture of experts. Its experts are split over all GPUs if the pool
    splits them.
    """
    attention_dp = 1
    if pool.expert_parallel or pool.attention_dp:
        attention_dp = pool.dp or 1
    splits_experts = experts and (pool.expert_parallel or attention_dp > 1)
    if splits_experts and gpus % attention_dp == 0:
        fields: Row = {"tp": gpus // attention_dp}
        fields["moe_ep" if pool.expert_parallel else "moe_tp"] = gpus
        if attention_dp > 1:
            fields["attention_dp"] = attention_dp
        return fields
    pp = pool.pp or 1
    if pp > 1 and gpus % pp == 0:
        return {"tp": gpus // pp, "pp": pp}
    return {"tp": gpus}


def _policy(pools: Sequence[RunningPool]) -> tuple[Row | None, str]:
    """Return the policy row that simulates the autoscaler of ``pools``, and a note or "".

    The row is None without an autoscaler, or if no policy simulates it. The note then says why.
    """
    if any(pool.autoscaler for pool in pools):
        return _autoscaler_policy(pools)
    triggers = {trigger for pool in pools for trigger in pool.triggers}
    if not triggers:
        return None, ""
    if len(triggers) > 1:
        return None, "its autoscalers use several metrics. Add them as policies yourself"
    (trigger,) = triggers
    measure, target = trigger.measure, trigger.value
    is_unreachable_share = measure in SHARES and (target or 0) > 1
    can_be_simulated = measure and target and trigger.per_replica and not is_unreachable_share
    if not can_be_simulated:
        return None, f"no policy can simulate a trigger on {trigger.metric[:80]}"
    name = "keda" if trigger.kind in ("keda", "kserve") else "hpa"
    return {"name": name, "label": LABEL, "metric": measure, "target": target}, ""


def _autoscaler_policy(pools: Sequence[RunningPool]) -> tuple[Row | None, str]:
    """Return the policy row of an autoscaler with its own rules, such as Dynamo's, and a note.

    Prefill and decode pools may share one autoscaler. If the pools have several, or if no policy
    has its settings, return None and the reason.
    """
    settings: Row = {}
    for pool in pools:
        stated = {key: value for key, value in (pool.autoscaler or {}).items() if value is not None}
        differs = any(settings.get(key, value) != value for key, value in stated.items())
        if differs or not stated:
            return None, "its pools have several autoscalers. Add them as policies yourself"
        settings |= stated
    try:
        policy_of(**settings)
    except ValidationError:
        return None, f"its {settings['name']} setting cannot be simulated"
    # The import leaves out a predictor that is not simulated, and Kalman is the default.
    uses_default = settings["name"] == "dynamo-sla" and "predictor" not in settings
    note = "its predictor is simulated as a Kalman filter" if uses_default else ""
    return {"label": LABEL, **settings}, note
