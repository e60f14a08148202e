"""Format numbers, shares, durations and moments for people."""

import math
import re
from contextvars import ContextVar
from datetime import UTC, datetime, tzinfo
from typing import Any

NOTHING = "–"
MINUS = "−"
LONG_MS = 1_000  # from which milliseconds are written as seconds or a larger unit
PROPER_NAMES = {  # of engines and providers of GPUs, by their key
    "vllm": "vLLM", "sglang": "SGLang", "trtllm": "TensorRT-LLM",
    "aws": "AWS", "azure": "Azure", "gcp": "Google Cloud", "oci": "Oracle Cloud",
    "cloudrift": "CloudRift", "cudo": "Cudo", "lambdalabs": "Lambda", "nebius": "Nebius",
    "runpod": "RunPod", "vastai": "Vast.ai", "verda": "Verda", "vultr": "Vultr",
}  # fmt: skip
MOST_PLACES = 4  # decimals of a percentage
ZONE: ContextVar[tzinfo] = ContextVar("zone", default=UTC)  # of the moments that people read


def minus(text: str) -> str:
    """Return a formatted number with a minus sign in place of a hyphen in front."""
    return f"{MINUS}{text[1:]}" if text.startswith("-") else text


def digits(value: float) -> str:
    """Return a number with three significant digits at least: 12,345 / 123 / 12.3 / 0.0123.

    A number that has fewer digits is shown with those: 1.5 is "1.5", and 1.499 is "1.50".
    """
    rounded = float(f"{value:.3g}")
    size = abs(rounded)
    if size == 0:
        return "0"
    if size >= 100:
        return minus(f"{value:,.0f}")
    text = f"{rounded:.{1 if size >= 10 else 2}f}" if size >= 1 else f"{rounded:#.3g}"
    if math.isclose(rounded, value, rel_tol=1e-9) and "e" not in text:
        text = text.rstrip("0").rstrip(".")
    return minus(text)


def figure(value: Any, unit: str = "") -> str:
    """Format ``12345.6|figure:"kWh"`` as "12,346 kWh"; "$" goes first; None is a dash.

    Milliseconds become seconds or a larger unit from 10 s.
    """
    if not isinstance(value, int | float) or isinstance(value, bool) or value != value:
        return NOTHING
    if unit == "$":
        return f"{MINUS if value < 0 else ''}${_amount_usd(abs(value))}"
    if unit == "ms":
        return milliseconds(value)
    text = minus(f"{value:,}") if isinstance(value, int) else digits(value)
    return f"{text} {unit}" if unit else text


def _amount_usd(usd: float) -> str:
    """Return dollars as ``digits`` does, but with two decimals, not one: 12.50, not 12.5."""
    whole, _, decimals = digits(usd).partition(".")
    if len(decimals) == 1:
        return f"{usd:.2f}"
    return f"{whole}.{decimals.rstrip('0'):0<2}" if decimals else whole


def compact(value: float | None, unit: str = "") -> str:
    """Format as ``figure`` does, but in millions (M) or billions (bn) from one million."""
    if value is None:
        return NOTHING
    for size, letter in ((1e9, "bn"), (1e6, "M")):
        if abs(value) >= size:
            if unit == "$":
                return f"{MINUS if value < 0 else ''}${abs(value) / size:.3g} {letter}"
            return minus(f"{value / size:.3g} {letter}{f' {unit}' if unit else ''}")
    return figure(value, unit)


def percent(fraction: Any, places: int = 1) -> str:
    """Format ``0.1234|percent`` as "12.3%"; a share below 1 is never shown as 100%."""
    if not isinstance(fraction, int | float) or fraction != fraction:
        return NOTHING
    text = f"{100 * fraction:.{places}f}%"
    if fraction < 1 and float(text[:-1]) == 100:
        return percent(fraction, places + 1) if places < MOST_PLACES else "almost 100%"
    return minus(text)


def signed_percent(fraction: Any, places: int = 1) -> str:
    """Format ``0.05|signed_percent`` as "+5.0%"."""
    if not isinstance(fraction, int | float) or fraction != fraction:
        return NOTHING
    rounded = round(100 * fraction, places) + 0.0  # + 0.0 turns -0.0 into 0.0
    return minus(f"{rounded:+.{places}f}%")


def milliseconds(value: Any) -> str:
    """Format milliseconds as ms below 1 s, else as seconds or a larger unit."""
    if not isinstance(value, int | float) or value != value:
        return NOTHING
    return f"{digits(value)} ms" if value < LONG_MS else duration(value / 1000)


def duration(seconds: Any) -> str:
    """Format seconds as "850 ms", "12.3 s", "4 min 10 s", "2 h 5 min" or "3 d 4 h"."""
    if not isinstance(seconds, int | float) or seconds != seconds:
        return NOTHING
    if seconds < 1:
        return f"{digits(seconds * 1000)} ms"
    if seconds < 60:
        return f"{digits(float(seconds))} s"
    rounded = round(seconds)
    for size, unit, smaller, small in ((86400, "d", 3600, "h"), (3600, "h", 60, "min")):
        if rounded >= size:
            rest = rounded % size // smaller
            return (
                f"{rounded // size} {unit} {rest} {small}" if rest else f"{rounded // size} {unit}"
            )
    return f"{rounded // 60} min {rounded % 60} s" if rounded % 60 else f"{rounded // 60} min"


def rough_duration(seconds: float) -> str:
    """Format an estimate of seconds with one or two significant digits, such as "20 min"."""
    steps = ((7200, 1800), (3600, 600), (600, 300), (60, 60), (10, 10))
    step = next((step for least, step in steps if seconds >= least), 1)
    return duration(max(1, step * round(seconds / step)))


def local(moment: datetime) -> datetime:
    """Return a moment in the reader's time zone. Without a zone it is in UTC."""
    return moment.replace(tzinfo=moment.tzinfo or UTC).astimezone(ZONE.get())


def zone_name() -> str:
    """Return the reader's time zone, such as UTC or Europe/Berlin."""
    return str(ZONE.get())


def when(moment: Any, clock: str = "utc", *, zoned: bool = True) -> str:
    """Format a moment (datetime or ISO text) as "18 May 2024, 14:00 UTC" in the reader's zone.

    On a relative clock, return the day of the trace and the time, such as "Day 47, 23:50". Without
    ``zoned``, omit the zone's name.
    """
    if isinstance(moment, str) and moment.startswith("+"):  # seconds since the trace began
        seconds = round(float(moment[1:-1]))
        text = when(datetime.fromtimestamp(seconds, UTC), "relative")
        return f"{text}:{seconds % 60:02d}" if seconds % 60 else text
    if isinstance(moment, str) and moment:
        moment = datetime.fromisoformat(moment)
    if not isinstance(moment, datetime):
        return NOTHING
    moment = local(moment)
    if clock == "relative":
        day, minutes = divmod(round(moment.timestamp()) // 60, 1440)
        return f"Day {day + 1}, {minutes // 60:02d}:{minutes % 60:02d}"
    zone = f"{moment:%Z}"  # such as CEST; zones without a name of their own have an offset
    offset = "UTC" * (not zone[0].isalpha())
    return f"{moment.day} {moment:%b %Y, %H:%M}{f' {offset}{zone}' * zoned}"


def proper_name(key: str) -> str:
    """Return the name of an engine or a provider, such as vLLM; other keys stay."""
    return PROPER_NAMES.get(key, key)


def tpot(text: str) -> str:
    """Return a text with TPOT in place of its aliases TBT and ITL."""
    return re.sub(r"\b(TBT|ITL)\b", "TPOT", text)


def parameter_text(value: Any) -> str:
    """Return the value of a parameter as a user would type it."""
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def key_words(key: str) -> str:
    """Return a key as words, such as "Load factor" for load_factor or "Cold start, s"."""
    words = re.sub(r"[._\[\]]+", " ", key).strip()
    return re.sub(r" (s|ms|kw|usd)$", r", \1", words[:1].upper() + words[1:])
