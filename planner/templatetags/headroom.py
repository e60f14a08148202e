"""Format numbers, times and states for people: significant digits, always with a unit."""

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any

from django import template
from django.utils import timezone
from django.utils.html import format_html, json_script
from django.utils.safestring import SafeString

from planner.domain.formats import (
    NOTHING,
    ZONE,
    compact,
    digits,
    duration,
    figure,
    milliseconds,
    percent,
    proper_name,
    rough_duration,
    signed_percent,
    tpot,
    when,
    zone_name,
)
from planner.domain.report import Fact, Meaning, limit_name
from planner.domain.reports.change import SEASON, days_old
from planner.models import Run, User
from planner.policies.registry import traits_of
from planner.selectors.glossary import meaning_of
from planner.selectors.runs import answer_of
from planner.services.cron import Cron, zone_of
from planner.version import VERSION

register = template.Library()
for formatter in (
    compact, duration, figure, milliseconds, percent, proper_name, rough_duration, signed_percent,
    tpot, when,
):  # fmt: skip
    register.filter(formatter)
for name, named_filter in (("answer", answer_of), ("bound", limit_name), ("meaning", meaning_of)):
    register.filter(name, named_filter)

LABELS = {  # of facts and tables whose name does not tell their content
    "gpu": "GPU", "tp": "GPUs of a replica", "ttft_statistic": "TTFT", "loop": "Load",
    "gpus": "GPUs", "timetable": "Schedule", "timetables": "All schedules", "beside": "Baselines",
    "moments": "Past forecasts", "history": "Demand history", "use": "Use of GPUs",
    "units": "Placed units", "week": "Weekly schedules", "courses": "Plans over time",
    "front": "Pareto front", "curve": "Capacity curve",
    "groups": "Results by tier, model and region",
}  # fmt: skip
PACE_KNOWN = 0.1  # share of a run after which the time left is estimated
PENDING_LONG_S = 20.0  # an idle worker starts a run within seconds

STATE_COLOURS = {
    "pending": "secondary",
    "running": "blue",
    "completed": "green",
    "failed": "orange",
    "errored": "red",
    "cancelled": "secondary",
    "uploaded": "blue",
    "ready": "green",
    "refused": "orange",
    "new": "blue",
    "read": "green",
    "problem": "orange",
}

# Words of the interface for actions of the audit log, where they differ.
ACTION_WORDS = {
    "asked": "started",
    "made": "created",
    "kept": "saved",
    "taken": "downloaded",
    "data-taken": "data downloaded",
    "password": "password changed",
    "mailbox": "mail address changed",
    "in-force": "activated",
    "begun": "started",
}

PROVENANCE_COLOURS = {
    "measured": "green",
    "published": "blue",
    "modelled": "purple",
    "assumed": "orange",
}


@register.filter
def fact_label(name: str) -> str:
    """Return the label of a fact of a measurement or a table, such as "GPU" for ``gpu``."""
    return LABELS.get(name, spaced(name))


@register.filter
def days_if_old(moment: datetime | None) -> int:
    """Return the age in days of the end of data, rounded up; 0 if it is not old, or unknown."""
    age = timezone.now() - moment if moment else timedelta()
    return days_old(age) if age > SEASON else 0


@register.filter
def worst(facts: Iterable[Fact]) -> str:
    """Return "risk" if one of the facts is a risk or missed, else "met"."""
    has_risk = any(fact.meaning in (Meaning.RISK, Meaning.MISSED) for fact in facts)
    return "risk" if has_risk else "met"


@register.filter
def per(value: Any, size: float) -> float | None:
    """Divide a number, as ``bytes|per:1e9`` for GB; None stays None."""
    return value / float(size) if isinstance(value, int | float) else None


@register.filter
def words(text: str) -> list[str]:
    """Split ``"bf16 fp8"|words`` into a list."""
    return text.split()


@register.filter
def usd(value: Any) -> str:
    """Format a price in dollars and cents."""
    return f"${value:,.2f}" if isinstance(value, int | float) else NOTHING


@register.filter
def cell(value: Any) -> str:
    """Format a value of a table whose columns state their units."""
    return figure(value) if isinstance(value, int | float) else str(value or NOTHING)


@register.filter
def cron_words(line: str) -> str:
    """Return a cron line in words."""
    return Cron.parse(line, "UTC").words


@register.filter
def when_in(moment: Any, zone: str) -> str:
    """Format a time as ``when`` does, but in ``zone`` instead of the reader's time zone."""
    token = ZONE.set(zone_of(zone))
    try:
        return when(moment)
    finally:
        ZONE.reset(token)


@register.filter
def concat(text: Any, more: Any) -> str:
    """Return ``text|concat:more``, both values joined as text."""
    return f"{text}{more}"


@register.filter
def filesize(size: Any) -> str:
    """Format bytes in decimal units."""
    if not isinstance(size, int | float):
        return NOTHING
    for limit, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if size >= limit:
            return f"{digits(size / limit)} {unit}"
    return f"{size:,.0f} bytes"


@register.filter
def get(mapping: Any, key: Any) -> Any:
    """Return ``mapping|get:key``, or None without such a key."""
    return mapping.get(key) if isinstance(mapping, dict) else None


@register.filter
def unlocalised(value: float) -> str:
    """Return a float with all its digits and a decimal point, for scripts and tests."""
    return repr(float(value))


@register.filter
def spaced(name: str) -> str:
    """Format ``input_tokens`` as "Input tokens"."""
    return name.replace("_", " ").capitalize()


@register.filter
def action_words(action: str) -> str:
    """Format an action of the audit log, such as ``run.asked``, as "Run started"."""
    noun, _, verb = action.partition(".")
    return f"{noun} {ACTION_WORDS.get(verb, verb)}".replace("-", " ").capitalize()


@register.filter
def audit_value(value: Any, name: str) -> str:
    """Format a detail of the audit log; a kind of run and a policy as their labels."""
    if name == "policy" and value:
        return traits_of(str(value)).label
    if name == "kind":
        return str(dict(Run.Kind.choices).get(value, value))
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return "none" if value is None else str(value)


@register.filter
def hundredths(fraction: float) -> int:
    """Return a fraction in whole percent."""
    return round(100 * fraction)


@register.filter
def elapsed(run: Run) -> float:
    """Return the seconds that a run took or has taken, or has waited if it has not started."""
    begun = run.started_at or run.created_at
    ended = run.finished_at or timezone.now()
    return max(0.0, (ended - begun).total_seconds())


@register.filter
def time_left(run: Run) -> float | None:
    """Estimate the seconds that a run still needs at its pace so far, or None early in the run."""
    if run.progress < PACE_KNOWN:
        return None
    return elapsed(run) * (1 - run.progress) / run.progress


@register.filter
def waits_long(run: Run) -> bool:
    """Return whether a run has waited for a worker for over PENDING_LONG_S seconds."""
    waited_s = (timezone.now() - run.created_at).total_seconds()
    return run.state == Run.State.PENDING and waited_s > PENDING_LONG_S


@register.filter
def no_worker(runs: list[Run]) -> bool:
    """Return whether no worker can be active: a run waits long although no run is computed."""
    is_any_running = any(run.state == Run.State.RUNNING for run in runs)
    return not is_any_running and any(waits_long(run) for run in runs)


@register.filter
def sample_lines(report: dict[str, Any], reason: str) -> list[int]:
    """Return the numbers of the first lines that an import rejected for ``reason``."""
    samples = report.get("reject_samples", [])  # each (line number, reason, text of the line)
    return [number for number, reason_of_line, _ in samples if reason_of_line == reason]


@register.filter
def state_colour(state: str) -> str:
    """Return the CSS colour of a state of a run, a trace or a source."""
    return STATE_COLOURS.get(state, "secondary")


@register.filter
def provenance_colour(kind: str) -> str:
    """Return the CSS colour of a kind of provenance, such as "measured"."""
    return PROVENANCE_COLOURS.get(kind, "secondary")


CHART_TOOLS = SafeString(
    '<div class="chart-tools">'
    '<button type="button" data-chart-tool="reset" hidden>Reset zoom</button>'
    '<button type="button" data-chart-tool="png" title="Copy as PNG">PNG</button>'
    '<button type="button" data-chart-tool="csv" title="Copy as CSV">CSV</button></div>'
)


@register.filter
def no_match(search: str, what: str) -> str:
    """Return the text of an empty list of ``what``, with the ``search`` if there was one."""
    return f"No {what} matches “{search}”" if search else f"No {what}"


@register.simple_tag
def icon(name: str, classes: str = "") -> SafeString:
    """Draw an icon of templates/web/_icons.html, hidden from screen readers as decoration."""
    return format_html(
        '<svg class="icon {}" fill="none" stroke="currentColor" stroke-linecap="round" '
        'stroke-linejoin="round" aria-hidden="true"><use href="#icon-{}"/></svg>',
        classes,
        name,
    )


@register.simple_tag
def chart(figure: dict[str, Any], element: str, label: str, classes: str = "") -> SafeString:
    """Return a frame with the id ``element`` and its figure as JSON for static/js/charts.js.

    It has buttons to reset the zoom and to copy the chart as PNG or CSV, and a table of its values.
    """
    data_id = f"{element.removesuffix('-chart')}-data"
    frame = format_html(
        '<div class="chart-box"><div class="chart-frame {}" id="{}" role="group" aria-label="{}" '
        'data-figure="{}"></div>{}',
        classes,
        element,
        label,
        data_id,
        CHART_TOOLS,
    )
    table = format_html(
        '<details class="chart-table small"><summary>Table</summary>'
        '<div class="table-responsive" tabindex="0" role="region" aria-label="{}, as a table" '
        'data-table-of="{}"></div></details></div>',
        label,
        data_id,
    )
    return frame + table + json_script(figure, data_id)


@register.simple_tag
def panel(
    figure: dict[str, Any] | None,
    element: str,
    title: str,
    label: str,
    classes: str = "",
    width: str = "col-12",
) -> SafeString:
    """Return a chart in a card, or "" without a figure; ``width`` is the card's CSS class."""
    if not figure:
        return SafeString("")
    return format_html(
        '<div class="{}"><div class="card h-100"><div class="card-header"><h2 class="card-title">{}'
        '</h2></div><div class="card-body p-2">{}</div></div></div>',
        width,
        title,
        chart(figure, element, label, classes),
    )


@register.filter
def may_remove_of(user: User, owner_id: int | None) -> bool:
    """Return whether the user may remove an object that ``owner_id`` created."""
    return user.may_remove(owner_id)


@register.simple_tag
def time_zone() -> str:
    return zone_name()


@register.simple_tag
def version() -> str:
    return VERSION


@register.simple_tag(takes_context=True)
def query(context: dict[str, Any], **changes: Any) -> str:
    """Return the current query string with some parameters changed, for links."""
    params = context["request"].GET.copy()
    for key, value in changes.items():
        params[key] = value
    return f"?{params.urlencode()}"
