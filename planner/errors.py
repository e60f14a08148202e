"""Expected outcomes of the application, each one sentence that says what to do.

Everything in EXPECTED ends as a sentence in the browser, problem+json in the API and exit 2 on the
command line; anything else is a bug and keeps its traceback.
"""

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


class NotAllowed(PlannerError):
    """The user's role does not allow this; the message says which one would."""

    title = "Not allowed"


class Outdated(NotReady):
    """Somebody else changed the thing since it was read; nothing was overwritten."""

    title = "Changed meanwhile"


class KeyReused(PlannerError):
    """An idempotency key comes again with another request."""

    title = "The idempotency key was used for another request"


class RunCancelled(Exception):
    """Raised out of a progress callback when the user asked the run to stop."""


EXPECTED = (ForecastError, SimulationError, PlannerError)
