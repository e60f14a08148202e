"""Expected outcomes of the application, each one sentence that says what to do.

Everything in EXPECTED ends as a sentence in the browser, problem+json in the API and exit 2 on the
command line; anything else is a bug and keeps its traceback.
"""

from forecasting.errors import ForecastError
from simulation.errors import SimulationError


class PlannerError(ValueError):
    """Base of the application's named outcomes."""

    exit_code = 2
    title = "The request could not be carried out"


class ScenarioError(PlannerError):
    """The scenario is not valid; the message names the line and field."""

    title = "The scenario is not valid"


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
