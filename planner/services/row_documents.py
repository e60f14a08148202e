r"""Convert rows of the database to JSON documents, one per line of a file, and load them.

A document is what Django's Python serializer makes of a row: ``model``, ``pk``, ``fields``. Every
character beyond ASCII is escaped in the file, and a line ends with "\\n" only. So no text in a row
can end a line.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any, TypedDict

from django.apps import apps
from django.core.exceptions import ValidationError
from django.core.serializers.base import DeserializationError, DeserializedObject
from django.core.serializers.json import DjangoJSONEncoder
from django.core.serializers.python import Deserializer, Serializer
from django.db import DataError, IntegrityError, connections
from django.db.models import CharField, Model

from planner.errors import PlannerError
from planner.files.stored_text import storable, unstorable_character
from planner.models import AttemptWindow, RunPart, Session, User
from planner.models.workspace import current_workspace

Document = dict[str, Any]
DIGEST_BITS = 256
# A row that a database or Django refuses. Lost connections and full disks are other errors.
ROW_ERRORS = (
    DataError,
    IntegrityError,
    DeserializationError,
    ValidationError,
    ValueError,
    TypeError,
    KeyError,
    AttributeError,
    OverflowError,
)


# Names in backups of versions before migration 0043.
FORMER_TABLES = {"planner.planinforce": "planner.activeplan"}
FORMER_COLUMNS = {
    ("planner.firing", "settled_at"): "finished_at",
    ("planner.outcome", "begun_at"): "started_at",
    ("planner.run", "removal_told_at"): "removal_announced_at",
    ("planner.secondfactor", "sealed"): "encrypted_key",
    ("planner.source", "read_to"): "read_until",
    ("planner.sourcereading", "what"): "file_name",
    ("planner.trace", "removal_told_at"): "removal_announced_at",
}
FORMER_COUNTERS = {"planinforce": "activeplan"}  # a counter has the name of its model


class TableFigures(TypedDict):
    """The number of rows in a table, and the sum of their digests, in any row order."""

    rows: int
    sha256: str


class RowDigest:
    """The number of rows in each table, and a digest of their documents.

    The digest is the same in every kind of database, and for every order of the rows.
    """

    def __init__(self) -> None:
        self._rows: Counter[str] = Counter()
        self._sums: Counter[str] = Counter()

    @property
    def rows(self) -> int:
        """Return the number of rows in all tables."""
        return self._rows.total()

    def add(self, document: Document) -> None:
        """Count the row that ``document`` describes, and add it to the digest of its table."""
        table = document["model"]
        self._rows[table] += 1
        content = json.dumps(_canonical(document), cls=_MicrosecondEncoder, sort_keys=True)
        digest = int.from_bytes(hashlib.sha256(content.encode()).digest())
        self._sums[table] = (self._sums[table] + digest) % 2**DIGEST_BITS

    def tables(self) -> dict[str, TableFigures]:
        """Return the number of rows and the digest of each table."""
        return {
            table: {"rows": rows, "sha256": f"{self._sums[table]:0{DIGEST_BITS // 4}x}"}
            for table, rows in sorted(self._rows.items())
        }


def differences(
    expected: dict[str, TableFigures], actual: dict[str, TableFigures], *, digests: bool = True
) -> list[str]:
    """Return one sentence for each table whose rows differ from the expected ones.

    Without ``digests``, only the numbers of rows are compared.
    """
    none: TableFigures = {"rows": 0, "sha256": "0" * (DIGEST_BITS // 4)}
    sentences = []
    for table in sorted({*expected, *actual}):
        expected_table, actual_table = expected.get(table, none), actual.get(table, none)
        if expected_table["rows"] != actual_table["rows"]:
            sentences.append(
                f"{table} has {actual_table['rows']} rows instead of {expected_table['rows']}."
            )
        elif digests and expected_table["sha256"] != actual_table["sha256"]:
            sentences.append(
                f"{table} has {actual_table['rows']} rows as expected, but their values differ."
            )
    return sentences


@dataclass(frozen=True, slots=True)
class LoadedRows:
    """The number of rows in a file, and the number that were stored."""

    file_digest: RowDigest  # the documents as they are in the file
    stored_digest: RowDigest  # the documents as the database should hold them
    left_out: dict[str, int]  # rows of each table or column that this version does not have
    replaced: int  # rows in which characters were replaced


class _MicrosecondEncoder(DjangoJSONEncoder):
    """A JSON encoder that keeps microseconds, which Django's encoder cuts to milliseconds."""

    def default(self, value: Any) -> Any:
        return value.isoformat() if isinstance(value, datetime) else super().default(value)


def tables_of_rows() -> list[type[Model]]:
    """Return every model in a backup: all but sessions, sign-in attempts and parts of runs."""
    models = apps.get_app_config("planner").get_models()
    return [model for model in models if model not in (AttemptWindow, RunPart, Session)]


def all_rows(using: str = "default") -> Iterator[Model]:
    """Yield every row of a database, table by table, ordered by primary key."""
    for model in tables_of_rows():
        yield from model._base_manager.using(using).order_by("pk").iterator(chunk_size=100)


def document_of(row: Model) -> Document:
    """Return a row as its document: JSON-ready data with ``model``, ``pk`` and ``fields``."""
    document: Document
    (document,) = Serializer().serialize([row])
    for many in row._meta.many_to_many:  # sorted, because a database returns them in any order
        document["fields"][many.name].sort()
    return document


def line_of(document: Document) -> bytes:
    """Return a document as a line of the file."""
    return json.dumps(document, cls=_MicrosecondEncoder, ensure_ascii=True).encode() + b"\n"


def tally_of(using: str) -> RowDigest:
    """Return the counts and digests of the rows in the database ``using`` (its alias)."""
    tally = RowDigest()
    for row in all_rows(using):
        tally.add(document_of(row))
    return tally


def load(lines: Iterable[bytes], *, using: str, replace_characters: bool = False) -> LoadedRows:
    """Insert the rows of a file into the empty tables of the database ``using`` (its alias).

    The caller has begun a transaction. Raises PlannerError with the row that the database refuses.
    With ``replace_characters``, characters that a database cannot store become U+FFFD.
    """
    file_digest, stored_digest = RowDigest(), RowDigest()
    left_out: Counter[str] = Counter()
    replaced = 0
    for number, line in enumerate(lines, 1):
        document = _parse_line(line, number)
        file_digest.add(document)
        # Documents of other releases have former names of tables and columns.
        label, values = document["model"], document["fields"]
        fields = {FORMER_COLUMNS.get((label, name), name): value for name, value in values.items()}
        if label == "planner.counter":
            fields["kind"] = FORMER_COUNTERS.get(fields["kind"], fields["kind"])
        document = document | {"model": FORMER_TABLES.get(label, label), "fields": fields}
        if replace_characters and unstorable_character(document["fields"]) is not None:
            document |= {"fields": storable(document["fields"])}
            replaced += 1
        for stored_document in _insert(document, using, left_out):
            stored_digest.add(stored_document)
    try:
        connections[using].check_constraints()
    except IntegrityError as error:
        detail = " ".join(str(error).split())
        raise PlannerError(
            f"The backup lacks a row that another row references: {detail} Correct it in the "
            "source database, and back up again."
        ) from error
    return LoadedRows(file_digest, stored_digest, dict(left_out), replaced)


def _parse_line(line: bytes, number: int) -> Document:
    """Return the document in line ``number`` of a file; raise PlannerError if it is damaged."""
    try:
        document = json.loads(line)
        if isinstance(document["fields"], dict) and isinstance(document["model"], str):
            return dict(document)
    except (ValueError, LookupError, TypeError, RecursionError):
        pass
    raise PlannerError(f"Line {number} of the backup's rows cannot be read: the file is damaged.")


def _insert(document: Document, using: str, left_out: Counter[str]) -> Iterator[Document]:
    """Insert the row of a document, and yield the documents of the rows that were inserted.

    A table or column that this version does not have is counted in ``left_out`` and not stored. The
    role of an account, from the first releases, becomes a row of Membership.
    """
    label, fields = document["model"], document["fields"]
    try:
        model = apps.get_model(label)
    except (LookupError, ValueError):
        left_out[label] += 1
        return
    field_names = {column.name for column in model._meta.get_fields()}
    moved_fields = {"role"} if model is User else set()
    left_out.update(f"{label}.{name}" for name in fields if name not in field_names | moved_fields)
    rows: list[DeserializedObject] = []
    try:
        rows = list(Deserializer([document], using=using, ignorenonexistent=True))
        for row in rows:
            row.save(using=using, force_insert=True)
    except ROW_ERRORS as error:
        raise PlannerError(_refusal_message(document, model, error, using)) from error
    yield document | {"fields": {name: fields[name] for name in fields if name in field_names}}
    for row in rows:
        role = fields.get("role")
        if role and isinstance(row.object, User):
            yield document_of(row.object.join(current_workspace(), role))


def _refusal_message(document: Document, model: type[Model], error: Exception, using: str) -> str:
    """Return a message on why the database ``using`` refused a row, and what to do."""
    row_name = f"{document['model']} {document.get('pk')}"
    vendor = connections[using].display_name
    for column, value in document["fields"].items():
        character = unstorable_character(value)
        if character is not None:
            return (
                f"{row_name}, column {column}: {vendor} cannot store the character {character}. "
                "Add --replace-characters to store U+FFFD in its place."
            )
    for column in model._meta.concrete_fields:
        value = document["fields"].get(column.name)
        if not isinstance(column, CharField) or not isinstance(value, str):
            continue
        if column.max_length is not None and len(value) > column.max_length:
            return (
                f"{row_name}, column {column.name}: {len(value)} characters, and {vendor} takes "
                f"{column.max_length}. Shorten it where the backup was made, and make another "
                "backup."
            )
    first_line, _, _ = str(error).strip().partition("\n")
    reason = first_line or type(error).__name__
    return (
        f"{row_name}: {vendor} refuses this row ({reason}). Correct it where the backup was "
        "made, and make another backup."
    )


def _canonical(value: Any) -> Any:
    """Return a JSON value with all whole numbers as int, as PostgreSQL returns 1e22."""
    if isinstance(value, float) and value.is_integer():
        return int(Decimal(repr(value)))
    if isinstance(value, dict):
        return {name: _canonical(item) for name, item in value.items()}
    return [_canonical(item) for item in value] if isinstance(value, list | tuple) else value
