"""Share the parts of all manifests: documents, metadata, comments and YAML.

YAML text that is more than a word is quoted: YAML 1.1 reads 07:30, no and 1e3 as other types.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from planner.domain.formats import duration, when
from planner.outputs.object_names import label_of
from planner.outputs.options import ExportOptions
from planner.outputs.plans import Plan, place_of, pool_text
from planner.outputs.pools import Pool
from planner.outputs.weekly_pattern import MINUTES_PER_DAY, MINUTES_PER_WEEK

OURS = "headroom"
METRIC = "headroom_desired_replicas"  # metric of Headroom's /metrics, by label ``pool``
READ_BACK = ("model", "region", "gpu", "gpus", "role")  # facts that planner/inputs/fleet reads
APPS = "apps/v1"

Fields = dict[str, Any]  # fields of a Kubernetes object, or of an object in one
_WORD = re.compile(r"[A-Za-z][A-Za-z0-9_./-]*")
# Lines without leading or trailing spaces, which a literal block keeps as they are.
_LINES = re.compile(r"(?:[!-~](?:[ -~]*[!-~])?\n){2,}")
_NOT_TEXT = {"y", "n", "yes", "no", "on", "off", "true", "false", "null", "nan", "inf"}


@dataclass(frozen=True, slots=True)
class Export:
    """A plan, with the options and the time of its export."""

    plan: Plan
    options: ExportOptions
    now: datetime

    @property
    def moment(self) -> datetime:
        """Return the local time for which a file without a schedule states the replicas."""
        return self.plan.local(self.options.at or self.plan.begins)

    def replicas(self, pool: Pool) -> int:
        """Return a pool's replicas at ``moment``, or the lower limit of a reactive rule."""
        return pool.min_replicas if self.plan.rule else pool.replicas_at(self.moment)


@dataclass(frozen=True, slots=True)
class Document:
    """An object of an exported file."""

    body: Mapping[str, Any]
    schema: str  # name of the schema that validates it
    comment: tuple[str, ...] = ()  # lines above it


@dataclass(frozen=True, slots=True)
class Target:
    """The object that an autoscaler scales."""

    kind: str
    name: str
    api: str = APPS


def deployment(pool: Pool) -> Target:
    """Return the Deployment object of a pool, as a scale target."""
    return Target("Deployment", pool.name)


def kubernetes_object(api: str, kind: str, metadata: Fields, **content: Any) -> Fields:
    """Return an object with ``content``, such as ``spec``. Fields that are None are left out."""
    fields = {"apiVersion": api, "kind": kind, "metadata": metadata, **content}
    known: Fields = _without_none(fields)
    return known


def _without_none(value: Any) -> Any:
    """Return ``value`` without the fields of mappings that are None."""
    if isinstance(value, Mapping):
        return {key: _without_none(item) for key, item in value.items() if item is not None}
    if isinstance(value, list | tuple):
        return [_without_none(item) for item in value]
    return value


def object_metadata(
    options: ExportOptions, run: int, region: str, name: str, model: str | None = None
) -> Fields:
    """Return the metadata of an object that belongs to a region of a run's plan.

    Each region is its own cluster. ``kubectl apply -l headroom/region=NAME`` selects the objects of
    one region.
    """
    return {
        "name": name,
        "namespace": options.namespace,
        "labels": {
            "app.kubernetes.io/managed-by": OURS,
            f"{OURS}/run": str(run),
            # Values of labels are restricted; the annotation ``pool`` holds the full names.
            f"{OURS}/model": label_of(model) if model else None,
            f"{OURS}/region": label_of(region),
        },
    }


def metadata(
    export: Export, pool: Pool, name: str = "", annotations: Mapping[str, str] | None = None
) -> Fields:
    """Return the metadata of a pool's object called ``name`` ("": as the pool).

    Its annotations state the plan and the pool, and then ``annotations``.
    """
    plan = export.plan
    facts = {
        "run": plan.run,
        "proposal": plan.proposal,
        "scenario": plan.scenario,
        "policy": plan.policy,
        "covers": _covered(plan),
        "pool": place_of(pool.model, pool.region, pool.arrangement),
        **{fact: getattr(pool, fact) for fact in READ_BACK},
        "gpu-power-cap-watts": pool.facts.power_cap_w,
        "gpu-clock-mhz": pool.facts.clock_mhz,
    }
    known = {f"{OURS}/{fact}": str(value) for fact, value in facts.items() if value is not None}
    fields = object_metadata(export.options, plan.run, pool.region, name or pool.name, pool.model)
    return fields | {"annotations": {**known, **(annotations or {})}}


def _covered(plan: Plan) -> str:
    """Return the dates of a plan, or the days of a trace without dates, and how it repeats."""
    if plan.clock == "utc":
        return f"{plan.begins:%Y-%m-%dT%H:%MZ} to {plan.ends:%Y-%m-%dT%H:%MZ}, {plan.repeat}"
    return f"{when(plan.begins, plan.clock)} to {when(plan.ends, plan.clock)}, {plan.repeat}"


def pool_document(
    export: Export, pool: Pool, api: str, kind: str, schema: str, spec: Fields, **more: Any
) -> Document:
    """Return an object of one pool with its comment; ``more`` are those of ``metadata``."""
    body = kubernetes_object(api, kind, metadata(export, pool, **more), spec=spec)
    return Document(body, schema, (pool_text(pool),))


def scale_target(target: Target) -> dict[str, str]:
    """Return the reference to a scale target."""
    return {"apiVersion": target.api, "kind": target.kind, "name": target.name}


def prometheus_trigger(
    export: Export, name: str, query: str, threshold: float, no_result_is_zero: bool | None = None
) -> Fields:
    """Return a trigger of KEDA that requests ``query / threshold`` replicas.

    ``no_result_is_zero``: a query without a result counts as 0 (True) or is an error (False). None
    leaves that to KEDA.
    """
    metadata: Fields = {
        "serverAddress": export.options.prometheus, "query": query, "threshold": f"{threshold:.6g}",
    }  # fmt: skip
    if no_result_is_zero is not None:
        metadata["ignoreNullValues"] = "true" if no_result_is_zero else "false"
    return {
        "type": "prometheus", "name": name, "metricType": "AverageValue", "metadata": metadata,
    }  # fmt: skip


def _file_comment(export: Export, notes: Sequence[str]) -> list[str]:
    """Return the lines at the top of a file: plan, dates and ``notes`` on the format."""
    plan = export.plan
    computed = f", computed {_utc(plan.computed)}" if plan.computed else ""
    approved = f" (approved: proposal {plan.proposal})" if plan.proposal else ""
    lines = [
        f"Headroom, run {plan.run}: {plan.scenario}{approved}",
        f"Policy: {plan.label}{computed}. Exported {_utc(export.now)}.",
    ]
    if plan.rule:
        lines.append("A rule and its limits, as tuned. It has no schedule.")
    else:
        lines += _schedule_comment(export)
    lines += [*plan.notes, *_power_cap_notes(plan), *notes]
    if len(plan.pools_by_region()) > 1:
        lines.append(
            "Each region is a separate cluster. Apply one with kubectl apply -l "
            f"{OURS}/region=NAME."
        )
    return [line for line in lines if line]


def _schedule_comment(export: Export) -> Iterator[str]:
    """Yield the lines on the schedule of a plan: whether it is past, its dates and its zone."""
    plan = export.plan
    if plan.repeat == "once" and plan.ends < export.now:
        yield (
            "WARNING: these dates are past. Plan the coming days, or repeat this plan daily or "
            "weekly."
        )
    covered = f"{_utc(plan.begins)} to {_utc(plan.ends)}"
    if plan.clock != "utc":
        days = f"{when(plan.begins, plan.clock)} to {when(plan.ends, plan.clock)}"
        covered = f"{days} of the trace, which has no dates"
    yield f"Covers {covered}. {_cycle(plan)}"
    known = [pool.facts.startup_s for pool in plan.pools if pool.facts.startup_s is not None]
    longest = f" ({max(known):g} s here)" if known else ""
    yield (
        f"Times are in {plan.zone} and mark when scaling starts. New replicas serve one cold "
        f"start later{longest}, when their period begins."
    )


def _power_cap_notes(plan: Plan) -> Iterator[str]:
    """Yield the notes on GPU power caps and clocks, which no autoscaler sets."""
    facts = [pool.facts for pool in plan.pools]
    settings = []
    if any(fact.power_cap_w is not None for fact in facts):
        settings.append(("gpu-power-cap-watts", "limit: nvidia-smi -pl WATTS"))
    if any(fact.clock_mhz is not None for fact in facts):
        settings.append(("gpu-clock-mhz", "clock: nvidia-smi -lgc MHZ"))
    for annotation, command in settings:
        yield f"Pools with {OURS}/{annotation} need nodes with that {command}, or DCGM."


def schedule_only_note(plan: Plan) -> tuple[str, ...]:
    """Return the note for a file that has the schedule of a plan but not its reactive guard."""
    if not plan.has_guard:
        return ()
    return (
        "This file has only the schedule. Export to keda, kserve, dynamo or hpa for the guard "
        "that scales on load.",
    )


def _utc(moment: datetime) -> str:
    """Return a time in UTC as text."""
    return f"{moment:%Y-%m-%d %H:%M} UTC"


def with_file_comment(export: Export, documents: Sequence[Document], *notes: str) -> list[Document]:
    """Return ``documents``, the first below the file's comment with ``notes`` on its format."""
    first, *rest = documents
    # An empty line separates the comment of the file from that of the object.
    comment = (*_file_comment(export, notes), "", *first.comment)
    return [replace(first, comment=comment), *rest]


def _cycle(plan: Plan) -> str:
    """Return as text how the plan repeats, and which counts apply outside its dates.

    ``replicas_without_gaps`` computes these counts.
    """
    if plan.repeat == "once":
        return "Once, on these dates."
    one_day = timedelta(minutes=MINUTES_PER_DAY)
    length = plan.ends - plan.begins
    if plan.repeat == "daily":
        every, cycle = "day", one_day
        rule_for_gaps = "its last count holds"
    else:
        every, cycle = "week", timedelta(minutes=MINUTES_PER_WEEK)
        rule_for_gaps = "the largest count of its other days at that time of day applies"
        if length < one_day:
            rule_for_gaps = (
                "its counts apply at the same times of day, and its last count at all others"
            )
    largest_note = gap_note = ""
    if length > cycle:
        largest_note = " (the largest count, if several of its days coincide)"
    if length < cycle:
        gap_note = (
            f" It does not cover {duration((cycle - length).total_seconds())} of each {every}. "
            f"There, {rule_for_gaps} (not simulated)."
        )
    return (
        f"Repeats every {every}{largest_note}. It was planned for these dates, so plan again when "
        f"traffic changes.{gap_note}"
    )


def yaml_text(documents: Sequence[Document]) -> str:
    """Return ``documents`` as a YAML stream, each below its comment."""
    texts = []
    for document in documents:
        lines = []
        for comment in document.comment:
            # YAML 1.1 also breaks lines at NEL, LS and PS. An unsplit break would end the comment.
            comment_lines = re.split(r"[\r\n\x85\u2028\u2029]", comment)
            lines += [f"# {line}".rstrip() for line in comment_lines]
        lines += _block(document.body, depth=0)
        texts.append("".join(f"{line}\n" for line in lines))
    return "---\n".join(texts)


def _block(value: Any, depth: int) -> Iterator[str]:
    """Yield the lines of a mapping or list in block style, indented by ``depth`` levels."""
    indent = "  " * depth
    if not isinstance(value, Mapping):
        for item in value:
            if _needs_block(item):
                # The first line of the item stands behind the dash of the list.
                first, *rest = _block(item, depth + 1)
                yield f"{indent}- {first.lstrip()}"
                yield from rest
            else:
                yield f"{indent}- {_scalar(item)}"
        return
    for key, item in value.items():
        name = f"{indent}{_scalar(key)}:"
        if _needs_block(item):
            yield name
            yield from _block(item, depth + 1)
        elif isinstance(item, str) and _LINES.fullmatch(item):
            yield f"{name} |"
            yield from (f"{indent}  {line}" for line in item.splitlines())
        else:
            yield f"{name} {_scalar(item)}"


def _needs_block(value: Any) -> bool:
    """Return whether a value is a mapping or list with items, which needs lines of its own."""
    return isinstance(value, Mapping | list | tuple) and bool(value)


def _scalar(value: Any) -> str:
    """Return a scalar as YAML; text is quoted if it is more than a word, or not read as text."""
    is_word = isinstance(value, str) and _WORD.fullmatch(value) is not None
    if is_word and value.lower() not in _NOT_TEXT:
        return str(value)
    return json.dumps(value)  # JSON is valid flow style in every YAML version
