"""Expected outcomes of the application, each one sentence that says what to do.

Everything in EXPECTED ends as a sentence in the browser, problem+json in the API and exit 2 on the
command line; anything else is a bug and keeps its traceback.
"""

import errno
import sqlite3
from collections.abc import Callable, Sequence
from typing import NamedTuple

from forecasting.errors import ForecastError
from simulation.errors import SimulationError


class PlannerError(ValueError):
    """Base of the application's named outcomes."""

    exit_code = 2
    title = "The request could not be carried out"


class ScenarioError(PlannerError):
    """The scenario is not valid; the message names the line and field."""

    title = "The scenario is not valid"


SHOWN = 40  # characters of a value that is refused


class OptionFault(NamedTuple):
    """What is wrong with one option of a run; ``value`` is empty where none was given. ``path``:
    with its place in a list, such as ``policies.0``."""

    name: str
    value: str
    remedy: str
    path: str


class OptionsRefused(PlannerError):
    """Options that the kind of run does not know, or that are not within their limits."""

    title = "The options are not valid"

    def __init__(self, message: str, faults: Sequence[OptionFault] = ()) -> None:
        super().__init__(message)
        self.faults = tuple(faults)

    @classmethod
    def of(
        cls, faults: Sequence[OptionFault], called: Callable[[str], str] = str
    ) -> "OptionsRefused":
        """``called``: what an option is named where this is read."""
        named = (f"{called(f.name)} {f.value[:SHOWN]}".strip() for f in faults)
        sentences = (f"{name}: {f.remedy}." for name, f in zip(named, faults, strict=True))
        return cls(" ".join(sentences), faults)


class IngestError(PlannerError):
    """A file cannot be read; the message names the file, the line and the remedy."""

    title = "The file could not be read"


class SourceError(PlannerError):
    """A live source cannot be read or is not described as it must be; the message says why."""

    title = "The source could not be read"


class CatalogueError(PlannerError):
    """A GPU, model or profile is not described as it must be; the message names the field."""

    title = "The description is not valid"


class Infeasible(PlannerError):
    """No plan meets every demand within every limit; the message names the conflict."""

    exit_code = 3
    title = "No plan is feasible"


class SolverFailed(PlannerError):
    """The solver stopped without an answer; the message says what to try."""

    title = "The solver gave no answer"


class NotFound(PlannerError):
    """A trace, scenario or run that is named does not exist or is not visible to the user."""

    title = "Not found"


class NotReady(PlannerError):
    """The thing exists but is not in a state that allows this."""

    title = "Not possible at this stage"


class PastLimit(NotReady):
    """A run has used the time or the memory that one may."""

    title = "Past a limit of time or memory"


class Damaged(NotReady):
    """What was kept of a run cannot be read any more: its file was cut short or changed."""

    title = "A kept table is damaged"


class NotAllowed(PlannerError):
    """The user's role does not allow this; the message says which one would."""

    title = "Not allowed"


class TooManyAttempts(NotAllowed):
    """Something that can be guessed was tried too often; the message names the delay."""

    title = "Too many attempts"

    def __init__(self, wait_s: int, sentence: str = "") -> None:
        super().__init__(sentence or f"Too many attempts. Try again in {wait_s} seconds.")
        self.wait_s = wait_s


class Outdated(NotReady):
    """Somebody else changed the thing since it was read; nothing was overwritten."""

    title = "Changed meanwhile"


class KeyReused(PlannerError):
    """An idempotency key comes again with another request."""

    title = "The idempotency key was used for another request"


def reason_of(problem: BaseException) -> str:
    """The kind of an expected outcome, the same words for all of it."""
    return str(getattr(problem, "title", "Not possible"))


class RunCancelled(Exception):
    """Raised out of a progress callback when the user asked the run to stop."""


EXPECTED = (ForecastError, SimulationError, PlannerError)

# What Python says of whole numbers and moments beyond what a database or a calendar has.
TOO_LARGE = ("too large to convert", "too big to convert", "date value out of range")


class Malformed(PlannerError):
    """What was sent is of a kind that a library refuses: a net, where no sentence of its own was
    made for it."""

    title = "What was sent cannot be read"


class NoRoom(PlannerError):
    """The disk is full or may not be written to; nothing of the request was kept."""

    title = "The disk is full"


class Unreached(PlannerError):
    """The bucket that arrays are kept in does not answer; another time it may."""

    title = "Kept arrays cannot be reached"


class Away(PlannerError):
    """A server that this one rests on does not answer; in a moment it may."""

    title = "Not now"


# What django and psycopg say of a connection that is not there, or is there no more.
AWAY = ("connection", "database system is", "administrator command", "could not translate host")


def of_servers(error: BaseException) -> Away | None:
    """The sentence where the database or the queue does not answer; None for any other error."""
    module, name = type(error).__module__.partition(".")[0], type(error).__name__
    if module in ("redis", "kombu") and name.endswith(("ConnectionError", "OperationalError")):
        what = "queue (Redis)"
    elif (
        module == "django"
        and name in ("OperationalError", "InterfaceError")
        and any(words in str(error) for words in AWAY)
    ):
        what = "database"
    else:
        return None
    return Away(
        f"The {what} of this installation does not answer. Nothing that was saved is lost: try "
        "again in a minute, and tell whoever runs it if it lasts."
    )


def of_input(error: BaseException) -> PlannerError | None:
    """The sentence for an error that only what was sent, or the disk, can have caused; None for a
    bug of the program."""
    text = str(error)
    if isinstance(error, OSError):
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS):
            return _no_room()
        if error.errno == errno.ENAMETOOLONG:
            return Malformed("The name of the file is too long; give it a shorter one.")
    if "disk is full" in text or "readonly database" in text:  # of SQLite, by whatever class
        return _no_room()
    if isinstance(error, RecursionError):
        return Malformed("What was sent is nested too deeply; check its brackets.")
    if "integer string conversion" in text or (
        isinstance(error, OverflowError) and any(words in text for words in TOO_LARGE)
    ):
        return Malformed("A number or moment in what was sent is beyond any that there is.")
    if isinstance(error, UnicodeError | sqlite3.DataError):
        return Malformed("Text in what was sent cannot be stored; save it as UTF-8.")
    return None


def _no_room() -> NoRoom:
    return NoRoom(
        "The disk of this installation is full or may not be written to, so this was not kept; "
        "an admin makes room on it (docs/operations.md says where), then try again."
    )
