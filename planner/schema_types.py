"""Define the types of a scenario's fields and the base classes of its sections (mappings)."""

from collections.abc import Iterator
from datetime import datetime
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

Share = Annotated[float, Field(gt=0, le=1)]
Count = Annotated[int, Field(ge=0, le=1_000_000)]
Delay = Annotated[float, Field(ge=0, le=31 * 86_400)]  # s
Milliseconds = Annotated[float, Field(gt=0, le=31 * 86_400_000)]
Watts = Annotated[float, Field(ge=0, le=100_000)]
Usd = Annotated[float, Field(ge=0, le=1_000_000)]
CoefficientMs = Annotated[float, Field(ge=0, le=1_000_000)]
LatencyMs = Annotated[float, Field(ge=0, le=60_000)]
Buffer = Annotated[float, Field(ge=0, le=100)]
QUANTILES = 0.05, 0.95  # the lowest and highest that forecasts have
Quantile = Annotated[float, Field(ge=QUANTILES[0], le=QUANTILES[1])]
BinS = Annotated[float, Field(ge=0.001, le=31 * 86_400)]
Peak = Annotated[float, Field(ge=0.1, le=1_000_000)]
PeakGb = Annotated[float, Field(ge=0.01, le=1_000_000)]
Width = Annotated[int, Field(ge=1, le=10_000_000)]
Grams = Annotated[float, Field(ge=0, le=100_000)]
Name = Annotated[
    str, Field(min_length=1, max_length=80, pattern=r"^[A-Za-z0-9][A-Za-z0-9 ._:/+-]*$")
]
Precision = Literal["bf16", "fp8", "fp4", "int8", "int4"]
# mixed: a replica prefills and decodes. Otherwise prefill pools hand over to decode pools.
Role = Literal["mixed", "prefill", "decode"]
# The role of a pool in the simulator, by its role in the scenario.
ROLES = {"mixed": "both", "prefill": "prefill", "decode": "decode"}


def check_year(value: datetime) -> datetime:
    """Check that a moment is within the years 1970 to 2261.

    Nanoseconds in 64 bits end in 2262. A shift to UTC fails at the ends of the calendar.
    """
    if not 1970 <= value.year <= 2261:
        raise ValueError("give a moment from 1970 to 2261")
    return value


Moment = Annotated[datetime, AfterValidator(check_year)]


class Section(BaseModel):
    """A section of a scenario: it refuses unknown keys, and does not change after loading."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class CheckedSection(Section):
    """A section with rules on several of its keys together."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        for fault in self._faults():
            raise ValueError(fault)  # the first one
        return self

    def _faults(self) -> Iterator[str]:
        """Yield a sentence for each broken rule; the first one is reported."""
        raise NotImplementedError


def expand_name(value: Any) -> Any:
    """Return ``{"name": value}`` for a text, which is its short form; other values unchanged."""
    return {"name": value} if isinstance(value, str) else value


def missing_fields_message(section: Section, fields: tuple[str, ...]) -> Iterator[str]:
    """Yield a sentence if a section has some of the fields and lacks others."""
    missing = [name for name in fields if getattr(section, name) is None]
    if missing and len(missing) < len(fields):
        yield (
            f"{', '.join(missing)} missing: give all of {', '.join(fields)}, or none of them to "
            "use the built-in facts"
        )
