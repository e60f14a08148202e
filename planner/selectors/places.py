"""List the entries of the menu and the pages below each, for the menu and the search."""

from dataclasses import dataclass
from functools import cache

from django.conf import settings

from planner.selectors.lookup import matches


@dataclass(frozen=True, slots=True)
class Job:
    """A page of the menu; ``words`` are further names by which people search for it."""

    page: str  # name of the address, without the namespace
    label: str
    words: str = ""


@dataclass(frozen=True, slots=True)
class Place:
    """An entry of the menu; the names of its pages begin with one of ``beginnings``."""

    label: str
    icon: str
    jobs: tuple[Job, ...]
    beginnings: tuple[str, ...]


PLACES = (
    Place("Fleet", "home", (Job("home", "Fleet", "home start active"),), ("home",)),
    Place(
        "Plan",
        "scenario",
        (
            Job("scenarios", "Scenarios", "plan compare forecast outlook backtest provision place"),
            Job("scenario-new", "New scenario", "create plan draft launch"),
            Job("runs", "Runs", "results history progress"),
            Job("what-ifs", "What-ifs", "sweep pareto sensitivity"),
        ),
        ("scenario", "run", "what-if", "sweep", "version"),
    ),
    Place(
        "Explore",
        "gauge",
        (
            Job("configure", "Find a deployment", "configure search gpu tp parallelism"),
            Job("estimate", "Estimate a deployment", "speed latency memory ttft tpot"),
            Job("quick-size", "Count GPUs", "how many users size"),
            Job("size", "Replica capacity", "size users rate replicas"),
            Job("pd-ratio", "Prefill-decode ratio", "prefill decode disaggregated"),
            Job("provision", "Operator-level provisioning", "operator module layer provisioning"),
        ),
        ("configure", "estimate", "quick-size", "size", "pd-ratio", "provision"),
    ),
    Place(
        "Changes",
        "check",
        (
            Job("proposals", "Proposals", "review approve"),
            Job("plans-in-force", "Active plans", "in force"),
            Job("schedules", "Schedules", "cron recurring"),
            Job("expectations", "Expected vs actual", "expectation promised intervals outcome"),
            Job("review-rules", "Review rules", "approvals automatic"),
        ),
        ("proposal", "review", "schedule", "outcome", "expectation", "plan"),
    ),
    Place(
        "Data",
        "trace",
        (
            Job("traces", "Traces", "upload requests"),
            Job("trace-upload", "Upload a trace", "import file"),
            Job("sources", "Live sources", "prometheus metrics"),
            Job("gpus", "GPUs", "hardware accelerators"),
            Job("models", "Models", "llm"),
            Job("profiles", "Profiles", "speed benchmark"),
            Job("calibrations", "Measurements", "calibrations benchmark rows"),
            Job("prices", "Prices", "cost"),
            Job("carbon", "Carbon", "grid emissions"),
        ),
        ("trace", "source", "profile", "gpu", "model", "hardware", "prices", "price", "carbon",
         "calibration"),
    ),
)  # fmt: skip
ACCOUNT = Place(
    "Account",
    "user",
    (
        Job("sessions", "Account", "sign-in sessions time zone"),
        Job("password-change", "Password", "change"),
        Job("second-factor", "Second factor", "authenticator code recovery"),
        Job("token", "API tokens", "rest key"),
        Job("notices", "Notifications", "alerts mail"),
        Job("workspaces", "Workspaces", "tenants"),
        Job("people", "People", "users roles"),
        Job("audit", "Audit log", "history"),
    ),
    (),
)
FOOTER = (
    Job("glossary", "Glossary", "terms"),
    Job("help", "Help", "how to guide documentation"),
)
# How-to, and the beginnings of the names of its pages; the longest beginning counts.
HELP = {
    "plan-tomorrow": ("home", "scenario", "run"),
    "import-your-fleet": ("scenario-fleet",),
    "ship-to-keda": ("run-export",),
    "ask-what-if": ("run-what-if", "scenario-what-if", "what-if"),
    "choose-a-gpu": ("configure", "estimate", "gpu", "model"),
    "count-gpus": ("size", "quick-size"),
    "split-prefill-and-decode": ("pd-ratio",),
    "review-a-plan": ("proposal", "review", "plan"),
    "plan-on-a-schedule": ("outcome", "expectation", "schedule"),
    "read-your-traffic": ("trace",),
    "connect-live-traffic": ("source",),
    "use-your-measurements": ("profile",),
    "measure-your-gpu": ("calibration",),
    "manage-people": ("people", "person", "workspace"),
    "use-the-api": ("token",),
}
NEEDS_PLANNER = ("scenario-new", "trace-upload")
NEEDS_ADMIN = ("people", "audit")


@cache
def how_tos() -> dict[str, str]:
    """Return the titles of the how-to pages by name, in order of their titles."""
    titled_pages = []
    for page in (settings.BASE_DIR / "docs" / "how-to").glob("*.md"):
        heading, _, _ = how_to_text(page.stem).partition("\n")
        titled_pages.append((heading.removeprefix("# "), page.stem))
    return {name: title for title, name in sorted(titled_pages)}


@cache
def how_to_text(name: str) -> str:
    """Return a how-to page in Markdown, with its title in the first line."""
    return (settings.BASE_DIR / "docs" / "how-to" / f"{name}.md").read_text(encoding="utf-8")


def how_tos_with(text: str) -> list[tuple[str, str]]:
    """Return (name, title) of the pages with all words of ``text``, those in the title first."""
    in_title, in_text = [], []
    for name, title in how_tos().items():
        if matches(text, title):
            in_title.append((name, title))
        elif matches(text, how_to_text(name)):
            in_text.append((name, title))
    return in_title + in_text


def help_of(page: str) -> str:
    """Return the name of the how-to for a page; "" if it has none."""
    how_to_by_beginning = {
        beginning: how_to
        for how_to, beginnings in HELP.items()
        for beginning in beginnings
        if page.startswith(beginning)
    }
    longest_beginning = max(how_to_by_beginning, key=len, default="")
    return how_to_by_beginning.get(longest_beginning, "")
