"""List, copy and write objects of an S3-compatible bucket, within limits.

Requests go only to the configured address. The bucket is part of the path, never of the host.
Redirects and proxies are not followed. Only the given credentials are used.
"""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from planner.errors import SourceError
from planner.inputs.live.prometheus.address import Address, address_of

try:
    import botocore.session
    from botocore import UNSIGNED
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError, ClientError, ParamValidationError
    from botocore.httpsession import where as trusted_by_default
    from botocore.parsers import ResponseParserError
except ModuleNotFoundError:  # 31 MB, so an optional dependency
    botocore = None

CONNECT_S, READ_S = 10.0, 60.0
MOST_LISTED = 100_000  # objects, about a hundred pages of a listing
CHUNK = 1 << 20
# Error codes of a server in another region, and of credentials that may not do something.
WRONG_REGION = {"PermanentRedirect", "AuthorizationHeaderMalformed", "301", "307"}
REFUSED = {"AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "403"}


class CopyFailed(SourceError):
    """An error for one object that cannot be copied; the others can still be read."""


@dataclass(frozen=True, slots=True)
class Keys:
    """Credentials of a bucket, which no text shows; empty for a public bucket."""

    access: str = field(default="", repr=False)
    secret: str = field(default="", repr=False)
    session: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class StoredObject:
    """An object in a bucket, without its content."""

    key: str
    bytes: int
    etag: str  # changes if the object is written again
    written_s: float = 0.0  # seconds since the epoch


@dataclass(frozen=True, slots=True)
class BucketPlace:
    """Where objects are: the URL of the server, the bucket, and the prefix of their keys."""

    url: str
    bucket: str
    prefix: str

    @property
    def address(self) -> Address:
        """Return the address of the objects, for comparison with the allowed addresses."""
        names = [self.bucket, self.prefix] if self.prefix else [self.bucket]
        return address_of("/".join([self.url.rstrip("/"), *names]))


class Bucket:
    """A bucket with a key prefix. Every expected failure is a SourceError of one sentence."""

    def __init__(
        self,
        place: BucketPlace,
        *,
        signing_region: str,
        keys: Keys,
        ca_file: str = "",
        read_s: float = READ_S,
        attempts: int = 1,  # sources try again at their next reading
        writes: bool = False,
    ) -> None:
        if botocore is None:
            raise SourceError(
                "A bucket needs a library: "
                ".venv/bin/python -m pip install -r requirements-bucket.txt -c constraints.txt"
            )
        self._server, self._bucket = address_of(place.url), place.bucket
        server = urlsplit(self._server.url)
        self._origin = server.scheme, server.netloc
        self._prefix = f"{place.prefix}/" if place.prefix else ""
        self._methods = {"GET", "PUT", "DELETE"} if writes else {"GET"}
        self._trusted = _certificates_file(ca_file) if ca_file else None
        config = {
            "connect_timeout": CONNECT_S,
            "read_timeout": read_s,
            "proxies": {},  # none, not even those of the environment
            "retries": {"total_max_attempts": attempts, "mode": "standard"},
            "s3": {"addressing_style": "path", "payload_signing_enabled": True},
            "request_checksum_calculation": "when_required",
            "response_checksum_validation": "when_required",
        }
        if not keys.access:
            config["signature_version"] = UNSIGNED
        self._client = botocore.session.Session().create_client(
            "s3",
            region_name=signing_region,
            endpoint_url=self._server.url,
            verify=self._trusted.name if self._trusted else None,
            aws_access_key_id=keys.access or None,
            aws_secret_access_key=keys.secret or None,
            aws_session_token=keys.session or None,
            config=Config(**config),
        )
        self._client.meta.events.register_first("before-send.s3", self._refuse_other_address)

    def objects(self, below: str = "") -> list[StoredObject]:
        """Return the objects whose keys start with ``below``; raise SourceError for too many."""
        objects = list(islice(self.all_objects(below), MOST_LISTED + 1))
        if len(objects) > MOST_LISTED:
            raise SourceError(
                f"prefix: {self._bucket} holds more than {MOST_LISTED:,} objects there. "
                "Name a narrower prefix."
            )
        return objects

    def all_objects(self, below: str) -> Iterator[StoredObject]:
        """Yield all objects below the prefix with keys that start with ``below``, by key."""
        with self._source_errors():
            pages = self._client.get_paginator("list_objects_v2")
            for page in pages.paginate(Bucket=self._bucket, Prefix=self._prefix + below):
                for entry in page.get("Contents", ()):
                    written = entry.get("LastModified")
                    written_s = written.timestamp() if written else 0.0
                    size, etag = int(entry["Size"]), str(entry.get("ETag", ""))
                    yield StoredObject(str(entry["Key"]), size, etag, written_s)

    def folders(self, below: str) -> list[str]:
        """Return the names of the folders directly under ``below``, without a slash."""
        start, prefixes = self._prefix + below, []
        with self._source_errors():
            pages = self._client.get_paginator("list_objects_v2")
            for page in pages.paginate(Bucket=self._bucket, Prefix=start, Delimiter="/"):
                prefixes += [str(prefix["Prefix"]) for prefix in page.get("CommonPrefixes", ())]
        return [prefix.removeprefix(start).rstrip("/") for prefix in prefixes]

    def get(self, key: str) -> bytes | None:
        """Return an object that fits into memory; None if the key does not exist."""
        with self._source_errors():
            try:
                answer = self._client.get_object(Bucket=self._bucket, Key=key)
            except self._client.exceptions.NoSuchKey:
                return None
            with answer["Body"] as body:
                return bytes(body.read())

    def put(self, key: str, content: bytes) -> None:
        with self._source_errors():
            self._client.put_object(Bucket=self._bucket, Key=key, Body=content)

    def delete(self, key: str) -> None:
        """Delete an object; a missing key is no error."""
        with self._source_errors():
            self._client.delete_object(Bucket=self._bucket, Key=key)

    def copy(self, key: str, path: Path, most_bytes: int) -> None:
        """Copy object ``key`` to ``path``; raise CopyFailed if refused or above ``most_bytes``."""
        path.parent.mkdir(parents=True, exist_ok=True)
        with self._source_errors(key), path.open("wb") as out:
            answer = self._client.get_object(Bucket=self._bucket, Key=key)
            size = int(answer.get("ContentLength", 0))
            with answer["Body"] as body:
                while size <= most_bytes and (chunk := body.read(CHUNK)):
                    out.write(chunk)
                    size = max(size, out.tell())
        if size > most_bytes:
            raise CopyFailed(
                f"{key[:200]!a} is larger than the {most_bytes / 1e9:g} GB that a file may have. "
                "Split it, or compress it."
            )

    def _refuse_other_address(self, request: Any, **_: Any) -> None:
        """Refuse every request of the library to another address or with another method.

        After a redirect the library asks for the bucket's region with HEAD requests. If the
        response is a redirect too, it would repeat them without end.
        """
        target = urlsplit(request.url)
        if (target.scheme, target.netloc) != self._origin or request.method not in self._methods:
            raise _OtherAddress(self._wrong_region_message())

    def _wrong_region_message(self) -> str:
        """Return a sentence for a server that redirects to another address."""
        return (
            f"{self._bucket} is not in the region of {self._server.url}. Give the server of its "
            "region, and signing_region."
        )

    @contextmanager
    def _source_errors(self, key: str = "") -> Iterator[None]:
        """Turn the library's errors into SourceError, or CopyFailed for the object ``key``."""
        try:
            yield
        except _OtherAddress as problem:
            raise SourceError(str(problem)) from None
        except ParamValidationError:
            raise SourceError(f"bucket: {self._bucket} is no name of a bucket. Check it.") from None
        except ClientError as problem:
            code = str(problem.response.get("Error", {}).get("Code", ""))
            if key and code not in WRONG_REGION:
                raise CopyFailed(
                    f"{self._server.host} does not give {key[:200]!a} ({code[:80]}). Check its "
                    "class of storage, and whether the credentials may get it."
                ) from None
            raise SourceError(self._error_words(code)) from None
        except (BotoCoreError, ResponseParserError, OSError) as problem:
            raise SourceError(
                f"{self._server.host}:{self._server.port} did not answer as an S3 store does "
                f"({type(problem).__name__}). Check url, and whether it is up."
            ) from None

    def _error_words(self, code: str) -> str:
        """Return a sentence with the remedy for an error code of the bucket's server."""
        if code in WRONG_REGION:
            return self._wrong_region_message()
        if code == "NoSuchBucket":
            return f"bucket: {self._server.host} has no bucket {self._bucket}. Check the name."
        if code in REFUSED:
            use, rights = "used", "list the bucket, and get, put and delete its objects"
            if self._methods == {"GET"}:
                use, rights = "read", "list the bucket and get its objects"
            return (
                f"{self._server.host} refuses to have {self._bucket} {use} ({code}). Check the "
                f"credentials, which may {rights}."
            )
        return f"{self._server.host} answered {code[:80]!a} to a request for {self._bucket}."


class _OtherAddress(Exception):
    """A request that would leave the configured address."""


def _certificates_file(ca_file: str) -> Any:
    """Return a temporary file with the usual certificate authorities and the operator's.

    It is deleted with its last reference, so the caller must keep it.
    """
    try:
        authorities = Path(ca_file).read_text()
    except (OSError, UnicodeDecodeError):
        raise SourceError(
            f"HEADROOM_SOURCES_CA: {ca_file} is no readable file of certificates (PEM)."
        ) from None
    file = tempfile.NamedTemporaryFile("w", suffix=".pem")  # noqa: SIM115
    file.write(f"{Path(trusted_by_default()).read_text()}\n{authorities}\n")
    file.flush()
    return file
