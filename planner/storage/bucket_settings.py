"""Read HEADROOM_ARRAYS, the bucket for traces, results and uploads."""

import os
import re
from dataclasses import dataclass, field
from importlib.util import find_spec

from django.core.exceptions import ImproperlyConfigured

from planner.setting_checks import env_text, is_url

REGION = re.compile(r"[a-z0-9][a-z0-9-]{0,40}")
ADDRESS = re.compile(r"s3://([a-z0-9][a-z0-9.-]{1,61}[a-z0-9])(?:/([A-Za-z0-9._/-]*))?")


@dataclass(frozen=True, slots=True)
class ArraysBucket:
    """The bucket for arrays, and the keys to it."""

    bucket: str
    prefix: str  # of all objects, without outer slashes
    url: str  # of the server
    region: str
    access: str = field(repr=False)
    secret: str = field(repr=False)
    session: str = field(repr=False)

    @property
    def name(self) -> str:
        """Return the address, such as "s3://headroom/arrays"."""
        return f"s3://{self.bucket}/{self.prefix}".rstrip("/")


def arrays_bucket() -> ArraysBucket | None:
    """Return the bucket for arrays; None if HEADROOM_ARRAYS is not set.

    Raises ImproperlyConfigured if a setting is missing or wrong.
    """
    region = env_text(
        "HEADROOM_ARRAYS_REGION",
        "us-east-1",
        check=REGION.fullmatch,
        give="a region such as us-east-1",
    )
    url = env_text(
        "HEADROOM_ARRAYS_URL",
        check=is_url,
        give="the address of the server, such as https://minio.example:9000",
    )
    address = os.environ.get("HEADROOM_ARRAYS", "").strip()
    if not address:
        return None
    match = ADDRESS.fullmatch(address)
    bucket, prefix = (match[1], (match[2] or "").strip("/")) if match else ("", "")
    has_wrong_folder = bool(prefix) and not {"", ".", ".."}.isdisjoint(prefix.split("/"))
    if not bucket or has_wrong_folder:
        raise ImproperlyConfigured(
            f"HEADROOM_ARRAYS is {address[:200]!r}. Give a bucket and a prefix, such as "
            "s3://headroom/arrays."
        )
    if find_spec("botocore") is None:
        raise ImproperlyConfigured(
            "HEADROOM_ARRAYS needs a library: "
            ".venv/bin/python -m pip install -r requirements-bucket.txt -c constraints.txt"
        )
    return ArraysBucket(
        bucket=bucket,
        prefix=prefix,
        url=url or f"https://s3.{region}.amazonaws.com",
        region=region,
        access=_required_variable("AWS_ACCESS_KEY_ID"),
        secret=_required_variable("AWS_SECRET_ACCESS_KEY"),
        session=os.environ.get("AWS_SESSION_TOKEN", "").strip(),
    )


def _required_variable(name: str) -> str:
    """Return a required environment variable; raise ImproperlyConfigured without it."""
    value = os.environ.get(name, "").strip()
    if not value or not value.isascii() or not value.isprintable():
        raise ImproperlyConfigured(
            f"{name}: missing or not ASCII, but HEADROOM_ARRAYS is set. Give a key that may "
            "read, write, list and delete in the bucket."
        )
    return value
