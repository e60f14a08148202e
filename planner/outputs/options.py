"""Declare the options of an export once for the command line, the API and the pages."""

import re
from typing import Annotated, Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import AfterValidator, AwareDatetime, Field

from planner.domain.options import RunOptions
from planner.outputs.object_names import checked_name

PROMETHEUS = "http://prometheus.monitoring.svc:9090"  # default of the Prometheus operator


def _zone(name: str) -> str:
    """Return ``name`` if it is an IANA time zone, else raise ValueError."""
    try:
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ValueError("give an IANA time zone, such as Europe/Berlin") from None
    return name


def _pair(text: str) -> str:
    """Return ``text`` if it has the form DEFAULT=NAME, else raise ValueError."""
    old, equals, new = text.partition("=")
    if not equals or not old:
        raise ValueError("give DEFAULT=NAME: the exported name, then your name")
    checked_name(new)
    return text


def _footprint(text: str) -> str:
    """Return ``text`` if it has the form MODEL=GIB with GIB above 0, else raise ValueError."""
    form = re.fullmatch(r"[^\s,=]+=(\d{1,5}(\.\d{1,3})?)", text)
    if form is None or not float(form[1]):
        raise ValueError("give MODEL=GIB for each model, such as llama-3.1-8b=17.5")
    return text


def _address(text: str) -> str:
    """Return ``text`` if it is an HTTP address, else raise ValueError."""
    if not text.startswith(("http://", "https://")) or any(c.isspace() for c in text):
        raise ValueError("give an address that begins with http:// or https://")
    return text


class ExportOptions(RunOptions):
    """Options of an exported file, apart from its format."""

    table: str | None = Field(None, title="Table", max_length=80)
    """Table to write as CSV. Default: the plan."""
    policy: str | None = Field(None, title="Policy", max_length=161)
    """Policy to export. Default: the recommended one."""
    region: str | None = Field(None, title="Region", max_length=80)
    """Only this region. Default: all."""
    model: str | None = Field(None, title="Model", max_length=120)
    """Only this model. Default: all."""
    most: int | None = Field(None, title="Maximum replicas per pool", ge=1, le=100_000)
    """Limit of the replicas that a guard adds. Default: the region's GPUs, as simulated."""
    repeat: Literal["auto", "once", "daily", "weekly"] = Field("auto", title="Repeat")
    """The dates of the window, or its days as a pattern. auto: as the active plan. Else once for a
    future window, daily for a window of a day, weekly for a longer one."""
    timezone: Annotated[str, AfterValidator(_zone)] = Field("UTC", title="Time zone", max_length=64)
    """IANA time zone of schedules."""
    namespace: Annotated[str, AfterValidator(checked_name)] | None = Field(
        None, title="Namespace", max_length=63
    )
    """Namespace of the objects. Default: current kubectl namespace."""
    prometheus: Annotated[str, AfterValidator(_address)] = Field(
        PROMETHEUS, title="Prometheus", max_length=300
    )
    """Address from which KEDA reads metrics."""
    names: tuple[Annotated[str, Field(max_length=400), AfterValidator(_pair)], ...] = Field(
        (), title="Names", min_length=1, max_length=500
    )
    """Rename a deployment: DEFAULT=NAME."""
    footprints: tuple[Annotated[str, Field(max_length=200), AfterValidator(_footprint)], ...] = (
        Field((), title="Footprints", min_length=1, max_length=500)
    )
    """GPU memory of a model besides its KV cache, measured on its engine, for a ModelClaim:
    MODEL=GIB."""
    at: AwareDatetime | None = Field(
        None,
        title="Time in the plan",
        json_schema_extra={"give": "a moment with its zone, such as 2026-05-18T08:00:00Z"},
    )
    """Time of a file with one replica count. Default: start of the plan."""
    form: Literal["hpa", "scaledobject", "variantautoscaling"] = Field("hpa", title="Form")
    """Form of an export to WVA; variantautoscaling is for old releases (July 2026)."""
