"""Check the settings of a source of each kind before they are stored."""

import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, field_validator

from planner.errors import IngestError, SourceError
from planner.inputs.ingest.clock import check_zone
from planner.inputs.ingest.options import OFFERED
from planner.schema_types import Name, Section

# Only variables with this prefix, so that a source cannot send other secrets away.
NAME_OF_VARIABLE = r"^HEADROOM_SOURCE_[A-Z0-9_]+$"
Variable = Annotated[str, Field(pattern=NAME_OF_VARIABLE, max_length=80)]
Label = Annotated[str, Field(pattern=r"^[a-zA-Z_][a-zA-Z0-9_]*$", max_length=80)]
MOST_DAYS = 400
# Variables that are useless without each other.
PAIRS = (("user_env", "password_env"), ("access_key_env", "secret_key_env"))


def labelled_field(title: str, help: str = "", **more: Any) -> Any:
    """Return a field with its label in the form and its description."""
    return Field(title=title, description=help, **more)


def optional_field(title: str, help: str = "") -> Any:
    """Return a field that is None if left out, with its label in the form and its description."""
    return labelled_field(title, help, default=None)


class PrometheusSettings(Section):
    """Settings of a Prometheus source."""

    url: Annotated[str, Field(min_length=8, max_length=300)] = labelled_field(
        "Address",
        "URL of the server without /api/v1, such as https://prometheus.example:9090. The "
        "environment variable HEADROOM_SOURCES must list it.",
    )
    engine: Literal["auto", "vllm", "sglang", "trtllm", "tgi", "dynamo", "llm-d"] = labelled_field(
        "Engine", default="auto"
    )
    match: dict[Label, Annotated[str, Field(max_length=200)]] = labelled_field(
        "Series filter", "One label=value per line, such as namespace=prod.", default={}
    )
    days: Annotated[float, Field(gt=0, le=MOST_DAYS)] = labelled_field(
        "Days of history", "Read when the source starts.", default=15.0
    )
    model: Name | None = optional_field(
        "LLM of all series", "Default: model reported by the engine."
    )
    model_label: Label | None = optional_field("Label of the model", "Default: the engine's label.")
    region: Name | None = optional_field("Region of all series")
    region_label: Label | None = optional_field("Label of the region", "Such as cluster.")
    tier: Name | None = optional_field("Tier of all series")
    tier_label: Label | None = optional_field("Label of the tier")
    token_env: Variable | None = optional_field(
        "Environment variable with the bearer token",
        "Its name begins with HEADROOM_SOURCE_. Do not enter the token itself.",
    )
    user_env: Variable | None = optional_field(
        "Environment variable with the user name", "For basic authentication."
    )
    password_env: Variable | None = optional_field("Environment variable with the password")
    delay_s: Annotated[int, Field(ge=0, le=86_400)] = 60  # wait until a bin counts as complete
    late_s: Annotated[int, Field(ge=0, le=7 * 86_400)] = 3600  # reread each time, for late data


class FileSettings(Section):
    """Settings of reading the files of a source, each once and in the same way as an upload."""

    format: Annotated[str, Field(max_length=32)] = labelled_field("Format", default="auto")
    mapping: dict[str, Annotated[str, Field(max_length=200)]] = labelled_field(
        "Columns", "One field=column per line, such as arrival=created:ms.", default={}
    )
    model: Name | None = optional_field("Model of every row")
    region: Name | None = optional_field("Region of every row")
    tier: Name | None = optional_field("Tier of every row")
    timezone: Annotated[str, Field(max_length=60)] | None = optional_field(
        OFFERED["timezone"].label, OFFERED["timezone"].help
    )

    @field_validator("timezone")
    @classmethod
    def check_timezone(cls, zone: str | None) -> str | None:
        """Return the zone (None: none); raise IngestError for a name that is no time zone."""
        check_zone(zone)
        return zone


class FolderSettings(FileSettings):
    """Settings of a folder."""

    path: Annotated[str, Field(min_length=1, max_length=500)] = labelled_field(
        "Folder", "A folder on the workers' machine, within HEADROOM_SOURCE_FOLDERS."
    )


class BucketSettings(FileSettings):
    """Settings of an S3-compatible bucket, with the files below ``prefix``."""

    url: Annotated[str, Field(min_length=8, max_length=300)] = labelled_field(
        "Address",
        "URL of the S3-compatible server without the bucket, such as "
        "https://s3.eu-central-1.amazonaws.com. It must be in HEADROOM_SOURCES.",
    )
    bucket: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$")] = labelled_field(
        "Bucket"
    )
    prefix: Annotated[str, Field(pattern=r"^[A-Za-z0-9!_.*'()=/-]*$", max_length=300)] = (
        labelled_field("Prefix", "Folder in the bucket. Default: the whole bucket.", default="")
    )
    signing_region: Annotated[str, Field(pattern=r"^[a-z0-9-]{1,40}$")] = labelled_field(
        "Region of the bucket", "As its server calls it.", default="us-east-1"
    )
    # A public bucket has no credentials.
    access_key_env: Variable | None = optional_field(
        "Environment variable with the access key",
        "Its name begins with HEADROOM_SOURCE_. Do not enter the key itself.",
    )
    secret_key_env: Variable | None = optional_field("Environment variable with the secret key")
    session_token_env: Variable | None = optional_field(
        "Variable of the session token", "Of temporary credentials."
    )

    @field_validator("prefix")
    @classmethod
    def folder(cls, path: str) -> str:
        """Strip slashes at the ends of a prefix; it names whole folders."""
        return path.strip("/")


class SamplesSettings(Section):
    """Settings of a source whose samples are sent; there are none."""


KINDS: Mapping[str, type[Section]] = {
    "prometheus": PrometheusSettings,
    "folder": FolderSettings,
    "bucket": BucketSettings,
    "samples": SamplesSettings,
}


def settings_of(kind: str, fields: Mapping[str, Any]) -> Any:
    """Return the checked settings of a source of a kind; raise SourceError for a fault."""
    if kind not in KINDS:
        raise SourceError(f"kind is {kind!r}. Give one of {', '.join(KINDS)}.")
    if "\\u0000" in json.dumps(dict(fields), default=str):
        raise SourceError("settings: a text in them has a NUL character. Remove it.")
    try:
        checked = KINDS[kind].model_validate(dict(fields))
    except IngestError as problem:
        raise SourceError(str(problem)) from None
    except ValidationError as problem:
        fault = problem.errors()[0]
        location = ".".join(str(part) for part in fault["loc"]) or "settings"
        raise SourceError(f"{location}: {_fault_words(fault, kind)}") from None
    for pair in PAIRS:  # fields that are given together or not at all
        names = [name for name in pair if getattr(checked, name, None)]
        if len(names) == 1:
            (missing_field,) = set(pair) - set(names)
            raise SourceError(f"{missing_field}: required because {names[0]} is given.")
    return checked


def _fault_words(fault: Any, kind: str) -> str:
    """Return the message of one pydantic error in settings of a ``kind``, with the remedy."""
    if fault["type"] == "extra_forbidden":
        return f"is not known here. Known: {', '.join(KINDS[kind].model_fields) or 'none'}."
    if fault["type"] == "missing":
        return "is needed."
    if fault["type"] == "string_pattern_mismatch" and fault["ctx"]["pattern"] == NAME_OF_VARIABLE:
        return (
            "name an environment variable that begins with HEADROOM_SOURCE_, such as "
            "HEADROOM_SOURCE_TOKEN; the secret itself is never stored."
        )
    return f"{str(fault['msg'])[:160].removesuffix('.').lower()}."
