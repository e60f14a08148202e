"""A product full of a team's work, and the addresses of its pages. Needs Django set up."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import cycle, islice, pairwise
from pathlib import Path
from threading import Event, Thread

from django.db import connection
from django.test import Client
from django.urls import reverse

from bench import ingest
from bench.team import create_team_rows
from planner.inputs.ingest import IngestOptions
from planner.inputs.scenario.document import edit, parse
from planner.management.runs import load_scenario
from planner.models import Run, Scenario, Trace, User
from planner.models.workspace import MAIN, enter
from planner.services.drafts import scenario_draft
from planner.services.runs import run_create
from planner.services.scenarios import scenario_create
from planner.services.traces import trace_ingest_path
from planner.services.worker import run_execute
from planner.web.urls import urlpatterns

EXAMPLE = Path(__file__).parents[1] / "docs" / "examples" / "first-plan.yml"
USER, PASSWORD = "bench", "a bench of pages"
# Not pages: what other pages fetch, a file, and the way out.
PARTS = {"home-activity", "estimate-rows", "account-data", "login", "logout"}
KINDS = (Run.Kind.COMPARE, Run.Kind.PLAN, Run.Kind.SIZE, Run.Kind.FORECAST, Run.Kind.PLACE)
WATCH_S = 0.1  # between two looks at the progress of a run
TEST_DAYS = [{"kind": "past", "windows": 1}]  # fewer than usual: only the pages count here


@dataclass(frozen=True, slots=True)
class DemoData:
    """The rows that the bench made; ``client`` is signed in as an admin."""

    client: Client
    trace: Trace
    scenario: Scenario
    runs: tuple[Run, ...]  # one of each kind, carried out
    team: tuple[str, ...] = ()  # addresses of what a team has beside
    steps_back: int = 0  # how often the progress of a run went down

    @property
    def run(self) -> str:
        """Return the address of the comparison, the largest page of a first visit."""
        return reverse("web:run", args=[self.runs[0].pk])

    @property
    def whatif(self) -> str | None:
        """Return the address of a what-if with a third more traffic; None if it has no answer."""
        address = f"{reverse('web:run-what-if', args=[self.runs[0].pk])}?growth=1.3"
        return address if self.client.get(address).status_code == 200 else None

    @property
    def draft(self) -> str:
        """Return the address of a new scenario from the trace."""
        return f"{reverse('web:scenario-new')}?trace={self.trace.name}"

    @property
    def forms(self) -> tuple[str, str]:
        """Return the addresses of the largest forms."""
        return self.draft, reverse("web:scenario", args=[self.scenario.pk])

    def addresses(self) -> list[str]:
        edit = reverse("web:scenario", args=[self.scenario.pk])
        return [
            *plain_pages(self.client),
            reverse("web:trace", args=[self.trace.name]),
            self.draft,
            edit,
            f"{edit}?view=yaml",
            *(reverse("web:run", args=[run.pk]) for run in self.runs),
            f"{reverse('web:runs')}?page=100",
            reverse("web:gpu", args=["H100-SXM"]),
            reverse("web:model", args=["llama-3.1-8b"]),
            *self.team,
            reverse("api:docs"),
        ]


def plain_pages(client: Client) -> list[str]:
    """Return every address of a page that has no name or number in it."""
    names = [
        pattern.name
        for pattern in urlpatterns
        if not pattern.pattern.converters and pattern.name not in PARTS
    ]
    addresses = [reverse(f"web:{name}") for name in names]
    return [address for address in addresses if client.get(address).status_code == 200]


def fill(folder: Path, rows: int, scenarios: int, runs: int) -> DemoData:
    """Create a trace of ``rows`` requests, copies of its draft, and one run of each kind."""
    enter(MAIN)
    user = User.objects.create_user(USER, password=PASSWORD, role=User.Role.ADMIN)
    with tempfile.TemporaryDirectory(dir=folder) as made:
        path = Path(made) / "large.csv"
        ingest.generate(path, rows)
        trace = trace_ingest_path(path=path, options=IngestOptions(name=path.name), owner=user)
    draft = scenario_draft(trace)
    name = parse(draft).name
    kept = [
        scenario_create(owner=user, document=draft.replace(name, f"{name} {number}", 1))
        for number in range(scenarios)
    ]
    document, name = load_scenario(str(EXAMPLE), lambda *_: None)
    document = edit(document, {"test_days": TEST_DAYS})
    done, steps_back = [], 0
    for kind in KINDS:
        run = run_create(owner=user, kind=kind, document=document, name=name, enqueue=False)
        with progress_watched(run.pk) as seen:
            done.append(run_execute(run_id=run.pk, raise_errors=True))
        steps_back += sum(later < earlier for earlier, later in pairwise(seen))
    team = create_team_rows(user, done[0], done[1], kept[0], document)
    _repeat(done, runs - len(done))
    client = Client(SERVER_NAME="localhost")
    client.force_login(user)
    return DemoData(client, trace, kept[0], tuple(done), team, steps_back)


@contextmanager
def progress_watched(run: int) -> Iterator[list[float]]:
    """Collect the progress of a run as pages would show it, while it is carried out."""
    seen: list[float] = []
    done = Event()

    def watch() -> None:
        while not done.wait(WATCH_S):
            seen.extend(Run.everywhere.filter(pk=run).values_list("progress", flat=True))
        connection.close()

    watcher = Thread(target=watch)
    watcher.start()
    try:
        yield seen
    finally:
        done.set()
        watcher.join()


def _repeat(done: list[Run], count: int) -> None:
    """Copy the runs, as if a team had planned each morning."""
    fields = [field.attname for field in Run._meta.concrete_fields if not field.primary_key]
    copies = (
        Run(**{name: getattr(run, name) for name in fields if name != "created_at"})
        for run in islice(cycle(done), count)
    )
    Run.objects.bulk_create(copies, batch_size=250)
