"""Share the parts of all manifests: documents, metadata, head comments, and YAML.

YAML text that is more than a word is quoted: YAML 1.1 reads 07:30, no and 1e3 as other types.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from planner.domain.formats import duration, when
from planner.outputs.object_names import label_of
from planner.outputs.options import ExportOptions
from planner.outputs.plans import Plan, Pool, place_of
from planner.outputs.weekly_pattern import DAY, WEEK

OURS = "headroom"
METRIC = "headroom_desired_replicas"  # metric of Headroom's /metrics, by label ``pool``
APPS = "apps/v1"

Fields = dict[str, Any]  # fields of a Kubernetes object or of a part of one, as YAML has them
_WORD = re.compile(r"[A-Za-z][A-Za-z0-9_./-]*")
# Lines without leading or trailing spaces, which a literal block keeps as they are.
_LINES = re.compile(r"(?:[!-~](?:[ -~]*[!-~])?\n){2,}")
_OTHER = {"y", "n", "yes", "no", "on", "off", "true", "false", "null", "nan", "inf"}


@dataclass(frozen=True, slots=True)
class Export:
    """A plan, with the options and the time of its export."""

    plan: Plan
    options: ExportOptions
    now: datetime

    @property
    def moment(self) -> datetime:
        """Return the time whose replicas a file without a schedule states, in the plan's zone."""
        return self.plan.local(self.options.at or self.plan.begins)

    def replicas(self, pool: Pool) -> int:
        """Return the number of replicas of a pool for a file that has no schedule.

        It is the number at ``moment``, or the lower limit of a reactive rule.
        """
        return pool.least if self.plan.rule else pool.replicas_at(self.moment)


@dataclass(frozen=True, slots=True)
class Document:
    """One object and the comment lines above it, its ``head``.

    ``schema`` names the schema that validates the object.
    """

    body: Mapping[str, Any]
    schema: str
    head: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Target:
    """The object that an autoscaler scales."""

    kind: str
    name: str
    api: str = APPS


def deployment(pool: Pool) -> Target:
    """Return the Deployment object of a pool, as a scale target."""
    return Target("Deployment", pool.name)


def metadata(
    export: Export, pool: Pool, name: str = "", annotations: Mapping[str, str] | None = None
) -> Fields:
    """Return the metadata of an object of a pool, called ``name`` (default: as the pool).

    Each region is its own cluster. ``kubectl apply -l headroom/region=NAME`` selects the objects of
    one region.
    """
    plan, cap, clock = export.plan, pool.facts.power_cap_w, pool.facts.clock_mhz
    return {
        "name": name or pool.name,
        **({"namespace": export.options.namespace} if export.options.namespace else {}),
        "labels": {
            "app.kubernetes.io/managed-by": OURS,
            f"{OURS}/run": str(plan.run),
            # Values of labels are restricted; the annotation ``pool`` holds the full names.
            f"{OURS}/model": label_of(pool.model),
            f"{OURS}/region": label_of(pool.region),
        },
        "annotations": {
            f"{OURS}/run": str(plan.run),
            **({f"{OURS}/proposal": str(plan.proposal)} if plan.proposal else {}),
            f"{OURS}/scenario": plan.scenario,
            f"{OURS}/policy": plan.policy,
            f"{OURS}/covers": covered_time(plan),
            f"{OURS}/pool": place_of(pool.model, pool.region, pool.arrangement),
            # planner/inputs/fleet reads these back.
            f"{OURS}/model": pool.model,
            f"{OURS}/region": pool.region,
            f"{OURS}/gpu": pool.gpu,
            f"{OURS}/gpus": str(pool.gpus),
            f"{OURS}/role": pool.role,
            **({f"{OURS}/gpu-power-cap-watts": str(cap)} if cap is not None else {}),
            **({f"{OURS}/gpu-clock-mhz": str(clock)} if clock is not None else {}),
            **(annotations or {}),
        },
    }


def covered_time(plan: Plan) -> str:
    """Return the time that a plan covers as text, for an annotation.

    A trace without dates has days of the trace.
    """
    if plan.clock != "utc":
        return f"{when(plan.begins, plan.clock)} to {when(plan.ends, plan.clock)}, {plan.repeat}"
    return f"{plan.begins:%Y-%m-%dT%H:%MZ} to {plan.ends:%Y-%m-%dT%H:%MZ}, {plan.repeat}"


def scale_target(target: Target) -> dict[str, str]:
    """Return the reference to a scale target."""
    return {"apiVersion": target.api, "kind": target.kind, "name": target.name}


def prometheus_trigger(
    export: Export, name: str, query: str, threshold: float, no_result_is_zero: bool | None = None
) -> Fields:
    """Return a trigger of KEDA that requests ``query / threshold`` replicas.

    A query without a result is 0, or an error; None leaves that to KEDA's default.
    """
    metadata: Fields = {
        "serverAddress": export.options.prometheus, "query": query, "threshold": f"{threshold:.6g}",
    }  # fmt: skip
    if no_result_is_zero is not None:
        metadata["ignoreNullValues"] = "true" if no_result_is_zero else "false"
    return {
        "type": "prometheus", "name": name, "metricType": "AverageValue", "metadata": metadata,
    }  # fmt: skip


def heading(export: Export, *more: str) -> tuple[str, ...]:
    """Return the comment above the first object: the plan, its dates and notes; ``more`` last."""
    plan = export.plan
    computed = f", computed {_utc(plan.computed)}" if plan.computed else ""
    covered = f"{_utc(plan.begins)} to {_utc(plan.ends)}"
    if plan.clock != "utc":
        days = f"{when(plan.begins, plan.clock)} to {when(plan.ends, plan.clock)}"
        covered = f"{days} of the trace, which has no dates"
    return (
        f"Headroom, run {plan.run}: {plan.scenario}"
        + (f" (approved: proposal {plan.proposal})" if plan.proposal else ""),
        f"Policy: {plan.label}{computed}. Exported {_utc(export.now)}.",
        f"Covers {covered}. {_cycle(plan)}"
        if plan.rule is None
        else "A rule and its limits, as tuned. It has no schedule.",
        *(() if plan.rule else (
            f"Times are in {plan.zone} and mark when scaling starts. New replicas serve one cold "
            f"start later{_startup(plan)}, when their period begins.",
        )),
        *plan.notes,
        *_power_cap_notes(plan),
        *more,
        "Each region is a separate cluster. Apply one with kubectl apply -l "
        f"{OURS}/region=NAME." if len(plan.by_region()) > 1 else "",
    )  # fmt: skip


def _power_cap_notes(plan: Plan) -> tuple[str, ...]:
    """Return the notes on power caps and clocks, which no autoscaler sets."""
    settings = (
        (f"{OURS}/gpu-power-cap-watts", "limit: nvidia-smi -pl WATTS", "power_cap_w"),
        (f"{OURS}/gpu-clock-mhz", "clock: nvidia-smi -lgc MHZ", "clock_mhz"),
    )
    return tuple(
        f"Pools with {annotation} need nodes with that {command}, or DCGM."
        for annotation, command, fact in settings
        if any(getattr(pool.facts, fact) is not None for pool in plan.pools)
    )


def schedule_only_note(plan: Plan) -> tuple[str, ...]:
    """Return the note for files that have a schedule but leave out the scaling by load."""
    if not plan.has_guard:
        return ()
    return (
        "This file has only the schedule. Export to keda, kserve, dynamo or hpa for the guard "
        "that scales on load.",
    )


def place_words(pool: Pool) -> str:
    """Return the model, region and hardware of a pool as text."""
    return f"{pool.model} in {pool.region}: {pool.arrangement}"


def _startup(plan: Plan) -> str:
    """Return the longest known cold start of the pools as text, or ""."""
    known = [pool.facts.startup_s for pool in plan.pools if pool.facts.startup_s is not None]
    return f" ({max(known):g} s here)" if known else ""


def _utc(moment: datetime) -> str:
    """Return a time in UTC as text."""
    return f"{moment:%Y-%m-%d %H:%M} UTC"


def with_head(documents: Sequence[Document], head: Sequence[str]) -> list[Document]:
    """Return ``documents`` with the comment lines ``head`` above the first one."""
    first, *rest = documents
    lines = tuple(line for line in head if line)
    # An empty line separates the comment of the file from that of the object.
    return [Document(first.body, first.schema, (*lines, "", *first.head)), *rest]


def _cycle(plan: Plan) -> str:
    """Return in words how the plan repeats, and the assumption of ``replicas_without_gaps``."""
    if plan.repeat == "once":
        return "Once, on these dates."
    every = "day" if plan.repeat == "daily" else "week"
    cycle = timedelta(minutes=DAY if every == "day" else WEEK)
    length = plan.ends - plan.begins
    largest_note = " (the largest count, if several of its days coincide)" if length > cycle else ""
    rest = cycle - length  # of each cycle, which the plan does not cover
    if every == "day":
        rule_for_gaps = "its last count holds"
    elif length < timedelta(minutes=DAY):
        rule_for_gaps = (
            "its counts apply at the same times of day, and its last count at all others"
        )
    else:
        rule_for_gaps = "the largest count of its other days at that time of day applies"
    rest_note = (
        f" It does not cover {duration(rest.total_seconds())} of each {every}. There, "
        f"{rule_for_gaps} (not simulated)."
        if rest > timedelta(0)
        else ""
    )
    return (
        f"Repeats every {every}{largest_note}. It was planned for these dates, so plan again when "
        f"traffic changes.{rest_note}"
    )


def yaml_text(documents: Sequence[Any], heads: Sequence[Sequence[str]]) -> str:
    """Return ``documents`` as a YAML stream, each below its comment lines in ``heads``."""
    return "---\n".join(
        "".join(f"# {line}".rstrip() + "\n" for line in _lines_of(head))
        + "".join(f"{line}\n" for line in _block(document, 0))
        for document, head in zip(documents, heads, strict=True)
    )


def _lines_of(head: Sequence[str]) -> Iterator[str]:
    """Yield the lines of a comment, split at every break, so that none of its text leaves it."""
    for line in head:
        # YAML 1.1 also breaks lines at NEL, LS and PS.
        yield from re.split(r"[\r\n\x85\u2028\u2029]", line)


def _block(value: Any, depth: int) -> Iterator[str]:
    """Yield the lines of a mapping or list in block style."""
    pad = "  " * depth
    if isinstance(value, Mapping):
        for key, item in value.items():
            if _needs_block(item):
                yield f"{pad}{_scalar(key)}:"
                yield from _block(item, depth + 1)
            elif isinstance(item, str) and _LINES.fullmatch(item):
                yield f"{pad}{_scalar(key)}: |"
                yield from (f"{pad}  {line}" for line in item.splitlines())
            else:
                yield f"{pad}{_scalar(key)}: {_scalar(item)}"
    else:
        for item in value:
            if not _needs_block(item):
                yield f"{pad}- {_scalar(item)}"
                continue
            first, *rest = _block(item, depth + 1)
            yield f"{pad}- {first.lstrip()}"
            yield from rest


def _needs_block(value: Any) -> bool:
    """Return whether a value needs its own lines below its key."""
    return isinstance(value, Mapping | list | tuple) and bool(value)


def _scalar(value: Any) -> str:
    """Return a scalar as YAML; it is quoted if it could be read as another type."""
    if isinstance(value, str) and _WORD.fullmatch(value) and value.lower() not in _OTHER:
        return value
    return json.dumps(value)  # JSON is valid flow style in every YAML version
