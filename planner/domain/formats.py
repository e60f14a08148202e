"""Format numbers, shares, durations and moments for people."""

import math
import re
from contextvars import ContextVar
from datetime import UTC, datetime, tzinfo
from typing import Any

NOTHING = "–"
MINUS = "−"
LONG_MS = 1_000  # milliseconds from which a time is written in seconds or a larger unit
PROPER_NAMES = {  # of engines and providers of GPUs, by their key
    "vllm": "vLLM", "sglang": "SGLang", "trtllm": "TensorRT-LLM",
    "aws": "AWS", "azure": "Azure", "gcp": "Google Cloud", "oci": "Oracle Cloud",
    "cloudrift": "CloudRift", "cudo": "Cudo", "lambdalabs": "Lambda", "nebius": "Nebius",
    "runpod": "RunPod", "vastai": "Vast.ai", "verda": "Verda", "vultr": "Vultr",
}  # fmt: skip
MOST_PLACES = 4  # decimals of a percentage that would else be rounded to 100%
ZONE: ContextVar[tzinfo] = ContextVar("zone", default=UTC)  # time zone of the reader


def _is_number(value: Any) -> bool:
    """Return whether a value is a number other than NaN."""
    return isinstance(value, int | float) and value == value  # NaN is not equal to itself


def minus(text: str) -> str:
    """Return a formatted number with a true minus sign in place of the hyphen in front of it."""
    return f"{MINUS}{text[1:]}" if text.startswith("-") else text


def digits(value: float) -> str:
    """Return a number with at least three significant digits: 12,345 / 123 / 12.3 / 0.0123.

    A number that has fewer digits is shown without zeros at the end: 1.5 is "1.5", but 1.499 is
    "1.50".
    """
    rounded = float(f"{value:.3g}")
    size = abs(rounded)
    if size == 0:
        return "0"
    if size >= 100:
        return minus(f"{value:,.0f}")
    decimals = 1 if size >= 10 else 2
    text = f"{rounded:.{decimals}f}" if size >= 1 else f"{rounded:#.3g}"
    if math.isclose(rounded, value, rel_tol=1e-9) and "e" not in text:
        text = text.rstrip("0").rstrip(".")
    return minus(text)


def figure(value: Any, unit: str = "") -> str:
    """Return a number with its unit: "12,346 kWh", or "$12,346" for the unit "$".

    Milliseconds become seconds or a larger unit from ``LONG_MS``. Anything but a number, such as
    None, is a dash.
    """
    if not _is_number(value) or isinstance(value, bool):
        return NOTHING
    if unit == "$":
        return f"{MINUS if value < 0 else ''}${_amount_usd(abs(value))}"
    if unit == "ms":
        return milliseconds(value)
    text = minus(f"{value:,}") if isinstance(value, int) else digits(value)
    return f"{text} {unit}" if unit else text


def _amount_usd(usd: float) -> str:
    """Return dollars as ``digits`` does, but never with one decimal: 12.50, not 12.5."""
    text = digits(usd)
    whole, _, decimals = text.partition(".")
    if len(decimals) == 1:
        return f"{usd:.2f}"  # format again: ``digits`` may have rounded the cents away
    # Zeros beyond the cents are dropped: 0.1250 becomes 0.125.
    return f"{whole}.{decimals.rstrip('0').ljust(2, '0')}" if decimals else text


def compact(value: float | None, unit: str = "") -> str:
    """Return a number as ``figure`` does, but in millions (M) or billions (bn) if it is large."""
    if value is None:
        return NOTHING
    for size, letter in ((1e9, "bn"), (1e6, "M")):
        if abs(value) >= size:
            if unit == "$":
                return f"{MINUS if value < 0 else ''}${abs(value) / size:.3g} {letter}"
            return minus(f"{value / size:.3g} {letter}{f' {unit}' if unit else ''}")
    return figure(value, unit)


def percent(fraction: Any, places: int = 1) -> str:
    """Return 0.1234 as "12.3%"; a share below 1 is never shown as 100%."""
    if not _is_number(fraction):
        return NOTHING
    rounded = f"{100 * fraction:.{places}f}"
    if fraction < 1 and float(rounded) == 100:
        return percent(fraction, places + 1) if places < MOST_PLACES else "almost 100%"
    return minus(f"{rounded}%")


def signed_percent(fraction: Any, places: int = 1) -> str:
    """Return 0.05 as "+5.0%"."""
    if not _is_number(fraction):
        return NOTHING
    rounded = round(100 * fraction, places) + 0.0  # + 0.0 turns -0.0 into 0.0
    return minus(f"{rounded:+.{places}f}%")


def milliseconds(value: Any) -> str:
    """Return milliseconds as "850 ms", or from 1 s on in seconds or a larger unit."""
    if not _is_number(value):
        return NOTHING
    return f"{digits(value)} ms" if value < LONG_MS else duration(value / 1000)


def duration(seconds: Any) -> str:
    """Return seconds as "850 ms", "12.3 s", "4 min 10 s", "2 h 5 min" or "3 d 4 h"."""
    if not _is_number(seconds):
        return NOTHING
    if seconds < 1:
        return f"{digits(seconds * 1000)} ms"
    if seconds < 60:
        return f"{digits(float(seconds))} s"
    rounded = round(seconds)
    units = ((86_400, "d", 3_600, "h"), (3_600, "h", 60, "min"), (60, "min", 1, "s"))
    unit_s, unit, part_s, part_unit = next(row for row in units if rounded >= row[0])
    text, rest = f"{rounded // unit_s} {unit}", rounded % unit_s // part_s
    return f"{text} {rest} {part_unit}" if rest else text


def rough_duration(seconds: float) -> str:
    """Return an estimate of seconds, rounded as people would say it, such as "20 min"."""
    # From this many seconds on, round to a multiple of this many.
    steps = ((7_200, 1_800), (3_600, 600), (600, 300), (60, 60), (10, 10))
    step_s = next((step_s for least_s, step_s in steps if seconds >= least_s), 1)
    return duration(max(1, step_s * round(seconds / step_s)))


def local(moment: datetime) -> datetime:
    """Return a moment in the reader's time zone. Without a zone it is in UTC."""
    return moment.replace(tzinfo=moment.tzinfo or UTC).astimezone(ZONE.get())


def zone_name() -> str:
    """Return the reader's time zone, such as UTC or Europe/Berlin."""
    return str(ZONE.get())


def when(moment: Any, clock: str = "utc", *, zoned: bool = True) -> str:
    """Return a moment (datetime or ISO text) in the reader's zone, as "18 May 2024, 14:00 UTC".

    On a "relative" clock, return the day of the trace and the time, such as "Day 47, 23:50".
    ``zoned``: with the name of the zone.
    """
    if isinstance(moment, str) and moment.startswith("+"):  # "+3600s": since the trace began
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
    text = f"{moment.day} {moment:%b %Y, %H:%M}"
    if not zoned:
        return text
    zone = f"{moment:%Z}"  # a name such as CEST, or an offset such as +03
    return f"{text} {zone}" if zone[0].isalpha() else f"{text} UTC{zone}"


def lower_first(text: str) -> str:
    """Return a text with a small first letter, for use within a sentence."""
    return text[:1].lower() + text[1:]


def counted(count: int, noun: str) -> str:
    """Return a number of things, such as "1 replica" or "1,200 replicas"."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


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
    """Return a key as words, such as "Load factor", or "Cold start, s" for "cold_start_s"."""
    words = re.sub(r"[._\[\]]+", " ", key).strip()
    return re.sub(r" (s|ms|kw|usd)$", r", \1", words[:1].upper() + words[1:])
