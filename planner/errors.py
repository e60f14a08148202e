"""Define the expected errors of the application, each one sentence with the remedy.

Everything in EXPECTED ends as a sentence in the browser, problem+json in the API and exit 2 on the
command line. Page and API answer with the status in HTTP_STATUS. Any other error is a bug and keeps
its traceback.
"""

import errno
import shlex
import sqlite3
from collections.abc import Callable, Sequence
from typing import NamedTuple

from forecasting.errors import ForecastError
from simulation.errors import SimulationError


class PlannerError(ValueError):
    """Base of the application's expected errors."""

    exit_code = 2
    title = "The request could not be carried out"


class ScenarioError(PlannerError):
    """The scenario is not valid; the message names the line and field."""

    title = "The scenario is not valid"


SHOWN = 40  # most characters of a refused value that are shown


class OptionFault(NamedTuple):
    """What is wrong with one option of a run."""

    name: str
    value: str  # as given; "" if none was given
    remedy: str
    path: str  # with the place in a list, such as ``policies.0``


class OptionsRefused(PlannerError):
    """Options are unknown to the kind of run, or outside their limits."""

    title = "The options are not valid"

    def __init__(self, message: str, faults: Sequence[OptionFault] = ()) -> None:
        super().__init__(message)
        self.faults = tuple(faults)

    @classmethod
    def of(
        cls, faults: Sequence[OptionFault], called: Callable[[str], str] = str
    ) -> "OptionsRefused":
        """Return the error for these faults; ``called`` returns how the reader calls an option."""
        sentences = []
        for fault in faults:
            name_and_value = f"{called(fault.name)} {fault.value[:SHOWN]}".strip()
            sentences.append(f"{name_and_value}: {fault.remedy}.")
        return cls(" ".join(sentences), faults)


class FieldsRefused(PlannerError):
    """Fields of a form are not valid. Each field shows its own error, so the message is empty."""

    title = "The form is not valid"


class IngestError(PlannerError):
    """A file cannot be read; the message names the file, the line and the remedy."""

    title = "The file could not be read"


class Choice(NamedTuple):
    """One way in which a file can be read, and the option that chooses it."""

    label: str
    option: str  # an option of reading files; "map" for a mapping of columns
    value: str
    figures: str = ""  # what the file then holds, as a sentence

    @property
    def flag(self) -> str:
        """Return the choice as an option of the command line."""
        return f"--{self.option} {shlex.quote(self.value)}"


class ColumnMissing(IngestError):
    """A file has no column that is known to hold ``field``; the caller has to name one."""

    def __init__(self, problem: str, field: str) -> None:
        self.field = field
        super().__init__(problem)


class Ambiguous(IngestError):
    """A file allows several readings with different figures; the caller has to choose one."""

    title = "The file can be read in several ways"

    def __init__(self, question: str, choices: Sequence[Choice]) -> None:
        self.question, self.choices = question, tuple(choices)
        listed = []
        for choice in self.choices:
            figures = f": {choice.figures}" if choice.figures else ""
            listed.append(f"{choice.flag} ({choice.label}{figures})")
        super().__init__(f"{question} Choose one: {'; '.join(listed)}.")


class SourceError(PlannerError):
    """A live source cannot be read, or its description is not valid; the message says why."""

    title = "The source could not be read"


class CatalogueError(PlannerError):
    """The description of a GPU, model or profile is not valid; the message names the field."""

    title = "The description is not valid"


class Infeasible(PlannerError):
    """No plan meets every demand within every limit; the message names the conflict."""

    exit_code = 3
    title = "No plan is feasible"


class SolverFailed(PlannerError):
    """The solver stopped without an answer; the message says what to try."""

    title = "The solver gave no answer"


class NotFound(PlannerError):
    """A named trace, scenario or run does not exist or is not visible to the user."""

    title = "Not found"


class NotReady(PlannerError):
    """The thing exists but is not in a state that allows this."""

    title = "Not possible at this stage"


class PastLimit(NotReady):
    """A run has used the time or the memory that a run may use."""

    title = "Past a limit of time or memory"


class DamagedFile(NotReady):
    """A stored file of a run cannot be read any more: it was cut short or changed."""

    title = "A stored table is damaged"


class NotAllowed(PlannerError):
    """The user's role does not allow this; the message says which one would."""

    title = "Not allowed"


class TooManyAttempts(NotAllowed):
    """Something that can be guessed was tried too often; the message names the delay."""

    title = "Too many attempts"

    def __init__(self, wait_s: int, sentence: str = "") -> None:
        super().__init__(sentence or f"Too many attempts. Try again in {wait_s} seconds.")
        self.wait_s = wait_s


class VersionConflict(NotReady):
    """Somebody else changed the thing since it was read; nothing was overwritten."""

    title = "Changed meanwhile"


class KeyReused(PlannerError):
    """An idempotency key was sent again with another request."""

    title = "The idempotency key was used for another request"

    @classmethod
    def of(cls, key: str, thing: str) -> "KeyReused":
        """Return the error for a key with which ``thing`` was created before."""
        return cls(
            f"The idempotency key {key!r} belongs to {thing}, with other values. Send a new key "
            "for a new request."
        )


def reason_of(problem: BaseException) -> str:
    """Return the title of an expected error, such as "Not found"."""
    return str(getattr(problem, "title", "Not possible"))


class RunCancelled(Exception):
    """Raised by a run's ``progress`` callback if somebody cancelled the run."""


EXPECTED = (ForecastError, SimulationError, PlannerError)

# Python's messages for whole numbers and dates beyond the range of a database or a calendar.
TOO_LARGE = ("too large to convert", "too big to convert", "date value out of range")


class MalformedInput(PlannerError):
    """A library refuses the input, and no more specific error exists."""

    title = "The request cannot be read"


class NoRoom(PlannerError):
    """The disk is full or read-only; nothing of the request was stored."""

    title = "The disk is full"


class BucketUnreachable(PlannerError):
    """The bucket for arrays does not answer; a later try may work."""

    title = "Kept arrays cannot be reached"


class Away(PlannerError):
    """A server that this one needs does not answer; a later try may work."""

    title = "Not now"


HTTP_STATUS: dict[type, int] = {
    PlannerError: 400,
    ForecastError: 422,
    SimulationError: 422,
    ScenarioError: 422,
    IngestError: 422,
    SourceError: 422,
    CatalogueError: 422,
    KeyReused: 422,
    NotAllowed: 403,
    TooManyAttempts: 429,
    NotFound: 404,
    Infeasible: 409,
    NotReady: 409,
    VersionConflict: 412,
    Away: 503,
    BucketUnreachable: 503,
    NoRoom: 507,
}


def status_of(problem: Exception) -> int:
    """Return the HTTP status of an expected error: that of its nearest class in HTTP_STATUS."""
    nearest, *_ = (kind for kind in type(problem).__mro__ if kind in HTTP_STATUS)
    return HTTP_STATUS[nearest]


# Messages of django and psycopg for a connection that is missing or was lost.
AWAY = ("connection", "database system is", "administrator command", "could not translate host")


def server_error_of(error: BaseException) -> Away | None:
    """Return the expected error if the database or the queue does not answer; else None."""
    # By name: this module imports neither Django nor Celery.
    package, _, _ = type(error).__module__.partition(".")
    name = type(error).__name__
    is_away = any(words in str(error) for words in AWAY)
    if package in ("redis", "kombu") and name.endswith(("ConnectionError", "OperationalError")):
        server = "queue (Redis)"
    elif package == "django" and name in ("OperationalError", "InterfaceError") and is_away:
        server = "database"
    else:
        return None
    return Away(
        f"The {server} of this installation does not answer. Saved data is not lost. Try "
        "again in a minute, and tell whoever runs it if it lasts."
    )


def input_error_of(error: BaseException) -> PlannerError | None:
    """Return the expected error for an error of the input or the disk; None for a bug."""
    text = str(error)
    error_number = error.errno if isinstance(error, OSError) else None
    if error_number in (errno.ENOSPC, errno.EDQUOT, errno.EROFS):
        return _no_room()
    if error_number == errno.ENAMETOOLONG:
        return MalformedInput("The name of the file is too long. Give it a shorter one.")
    # messages of SQLite; its exception classes vary
    if "disk is full" in text or "readonly database" in text:
        return _no_room()
    if isinstance(error, RecursionError):
        return MalformedInput("The request is nested too deeply. Check its brackets.")
    is_too_large = isinstance(error, OverflowError) and any(words in text for words in TOO_LARGE)
    if is_too_large or "integer string conversion" in text:
        return MalformedInput("A number or time in the request is out of range.")
    if isinstance(error, UnicodeError | sqlite3.DataError):
        return MalformedInput("Text in the request cannot be stored. Save it as UTF-8.")
    return None


def _no_room() -> NoRoom:
    """Return the error for a disk that is full or read-only."""
    return NoRoom(
        "The disk of this installation is full or read-only, so this was not saved. "
        "Ask an admin to free space (docs/operations.md), then try again."
    )
