"""Every address as every role, on what is of one's own workspace and of another.

The addresses come from the URL tables, so none can be forgotten: one without a line in ``NEEDS``
fails. A line says the least role that an address lets in, method by method; what each role is
answered is asked of the product.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import pytest
from django.db import transaction
from django.test import Client
from django.urls import reverse
from rest_framework.test import APIClient

from planner.api.urls import urlpatterns as api_patterns
from planner.models import User, Workspace
from planner.models.workspace import current_workspace, use_workspace
from planner.web.urls import urlpatterns as web_patterns
from tests.planner.objects import Objects, made

EVERYBODY, NOBODY = "everybody", "nobody"
ROLES = (EVERYBODY, "none", "viewer", "planner", "approver", "admin")
GONE = {401, 403, 404}
REDIRECT = 302
METHODS = ("get", "post")  # of pages; the API names those of each address

# nobody: of nobody here but an admin of the installation, who is not asked, or of what is not
# there: a token of one's own, a calibration with rows. What is sent wrongly may be refused before
# the role is asked for, so that a change may say viewer; its service asks for the role.
NEEDS = {
    "web:login": "get everybody, post everybody",
    "web:provider": "get nobody",
    "web:provider-back": "get nobody",
    "web:login-code": "get nobody, post nobody",
    "web:logout": "post nobody",
    "web:second-factor": "get none, post none",
    "web:sessions": "get none, post none",
    "web:time-zone": "post none",
    "web:welcome": "get everybody, post everybody",
    "web:password-change": "get none, post none",
    "web:account-data": "get none",
    "web:token": "get viewer, post viewer",
    "web:password-forgotten": "get everybody, post everybody",
    "web:notices": "get viewer, post viewer",
    "web:notices-mailbox": "post viewer",
    "web:notices-change": "post admin",
    "web:workspaces": "get viewer, post nobody",
    "web:workspace-enter": "post viewer",
    "web:workspace-remove": "post nobody",
    "web:people": "get admin, post admin",
    "web:person-change": "post admin",
    "web:person-invite": "post admin",
    "web:person-remove": "get admin, post admin",
    "web:home": "get viewer",
    "web:home-activity": "get viewer",
    "web:find": "get viewer",
    "web:glossary": "get viewer",
    "web:expectations": "get viewer",
    "web:help": "get viewer",
    "web:help-page": "get viewer",
    "web:traces": "get viewer",
    "web:trace-upload": "get planner, post planner",
    "web:trace": "get viewer",
    "web:trace-map": "post planner",
    "web:sources": "get viewer",
    "web:source-new": "get planner, post planner",
    "web:source": "get viewer",
    "web:source-read": "post planner",
    "web:source-pause": "post planner",
    "web:profiles": "get viewer",
    "web:profile-new": "get planner, post planner",
    "web:profile": "get viewer",
    "web:profile-residuals": "get viewer",
    "web:profile-tune": "post planner",
    "web:calibrations": "get viewer",
    "web:calibration-new": "get planner, post planner",
    "web:calibration": "get nobody, post nobody",
    "web:gpus": "get viewer",
    "web:gpu-new": "get planner, post planner",
    "web:gpu": "get viewer",
    "web:gpu-edit": "get planner, post planner",
    "web:models": "get viewer",
    "web:model-new": "get planner, post planner",
    "web:model": "get viewer",
    "web:model-edit": "get planner, post planner",
    "web:hardware-import": "get planner, post planner",
    "web:prices": "get viewer",
    "web:price-list-add": "post planner",
    "web:carbon": "get viewer",
    "web:configure": "get viewer",
    "web:quick-size": "get viewer",
    "web:estimate": "get viewer",
    "web:estimate-rows": "post viewer",
    "web:estimate-keep": "post planner",
    "web:scenarios": "get viewer",
    "web:scenario-new": "get planner, post planner",
    "web:scenario": "get viewer, post planner",
    "web:scenario-run": "post planner",
    "web:scenario-fleet": "get planner, post planner",
    "web:scenario-duplicate": "post planner",
    "web:scenario-download": "get viewer",
    "web:scenario-versions": "get viewer",
    "web:version-restore": "post planner",
    "web:version-branch": "post planner",
    "web:proposals": "get viewer",
    "web:proposal-new": "get planner, post planner",
    "web:review-rules": "get viewer, post admin",
    "web:proposal": "get viewer",
    "web:proposal-act": "post viewer",
    "web:plans-in-force": "get viewer",
    "web:plan-in-force": "get viewer",
    "web:plan-in-force-restore": "post approver",
    "web:plan-in-force-end": "post approver",
    "web:plan-in-force-branch": "post planner",
    "web:audit": "get admin",
    "web:audit-file": "get admin",
    "web:sweeps": "get viewer",
    "web:sweep-new": "get viewer",
    "web:sweep": "get viewer",
    "web:what-ifs": "get viewer",
    "web:what-if": "get viewer",
    "web:what-if-cancel": "post planner",
    "web:scenario-what-if": "get viewer",
    "web:size": "get viewer, post nobody",
    "web:pd-ratio": "get viewer, post nobody",
    "web:provision": "get viewer, post nobody",
    "web:runs": "get viewer",
    "web:runs-compare": "get viewer",
    "web:run": "get viewer",
    "web:run-what-if": "get viewer",
    "web:run-what-if-start": "post planner",
    "web:run-cancel": "post planner",
    "web:run-export": "get viewer",
    "web:run-names": "post planner",
    "web:run-in-force": "post approver",
    "web:run-result": "get viewer",
    "web:run-table": "get viewer",
    "web:run-parquet": "get viewer",
    "web:trace-delete": "post admin",
    "web:source-delete": "post admin",
    "web:profile-delete": "post admin",
    "web:calibration-delete": "post admin",
    "web:gpu-delete": "post admin",
    "web:model-delete": "post admin",
    "web:price-list-delete": "post admin",
    "web:scenario-delete": "post admin",
    "web:what-if-delete": "post admin",
    "web:run-delete": "post admin",
    "web:run-replay-month": "post planner",
    "web:configure-progress": "get viewer",
    "web:schedules": "get viewer",
    "web:schedule-new": "get planner, post planner",
    "web:schedule": "get viewer",
    "web:schedule-edit": "get planner, post planner",
    "web:schedule-pause": "post planner",
    "web:schedule-resume": "post planner",
    "web:schedule-fire": "post planner",
    "web:outcome": "get viewer",
    "web:schedule-delete": "post admin",
    "api:schema": "get none",
    "api:docs": "get none",
    "api:token": "post everybody",
    "api:me": "get viewer",
    "api:my-data": "get viewer",
    "api:my-factor": "get viewer, post viewer, put viewer",
    "api:my-token": "delete viewer",
    "api:my-tokens": "get viewer",
    "api:my-token-number": "delete nobody",
    "api:people": "get admin, post admin",
    "api:person": "patch admin, delete admin",
    "api:invitation": "post admin",
    "api:account": "delete admin",
    "api:workspaces": "get viewer, post nobody",
    "api:workspace": "patch viewer, delete nobody",
    "api:notices": "get viewer",
    "api:channels": "get viewer, post viewer",
    "api:channel": "delete admin",
    "api:channel-test": "post admin",
    "api:traces": "get viewer, post planner",
    "api:trace": "get viewer, delete admin",
    "api:trace-demand": "get viewer",
    "api:trace-reading": "get viewer, post planner",
    "api:trace-character": "get viewer",
    "api:scenarios": "get viewer, post viewer",
    "api:scenario": "get viewer, put viewer, patch viewer, delete admin",
    "api:scenario-runs": "post viewer",
    "api:scenario-fleet": "post viewer",
    "api:sources": "get viewer, post viewer",
    "api:source-preview": "post viewer",
    "api:source": "get viewer, patch planner, delete admin",
    "api:source-read": "post planner",
    "api:source-samples": "post viewer",
    "api:source-readings": "get viewer",
    "api:source-series": "get viewer",
    "api:gpus": "get viewer, post viewer",
    "api:gpu": "get viewer, put viewer, delete admin",
    "api:models": "get viewer, post viewer",
    "api:model": "get viewer, put viewer, delete admin",
    "api:hardware": "post viewer",
    "api:prices": "get viewer",
    "api:price-lists": "post viewer",
    "api:price-list": "delete admin",
    "api:carbon": "get viewer",
    "api:profiles": "get viewer, post viewer",
    "api:profile": "get viewer, delete admin",
    "api:profile-versions": "get viewer",
    "api:profile-checks": "get viewer",
    "api:profile-residuals": "get viewer",
    "api:calibrations": "get viewer, post planner",
    "api:calibration": "get nobody, delete admin",
    "api:calibration-fits": "post viewer",
    "api:calibration-comparisons": "post viewer",
    "api:observations": "post viewer",
    "api:quick-size": "post viewer",
    "api:estimates": "post viewer",
    "api:estimate-rows": "post viewer",
    "api:configure": "post viewer",
    "api:configure-scenario": "post viewer",
    "api:ingest": "post planner",
    "api:forecast": "post viewer",
    "api:plan": "post viewer",
    "api:simulate": "post viewer",
    "api:compare": "post viewer",
    "api:provision": "post viewer",
    "api:size": "post viewer",
    "api:pd-ratio": "post viewer",
    "api:backtest": "post viewer",
    "api:pareto": "post viewer",
    "api:outlook": "post viewer",
    "api:place": "post viewer",
    "api:share": "post viewer",
    "api:sweeps": "get viewer, post viewer",
    "api:sweep": "get viewer, delete admin",
    "api:sweep-cancel": "post planner",
    "api:deployment-names": "get viewer, post viewer",
    "api:runs": "get viewer",
    "api:runs-beside": "get viewer",
    "api:run": "get viewer, delete admin",
    "api:run-why": "get viewer",
    "api:run-what-if": "post viewer",
    "api:run-replay": "post planner",
    "api:run-cancel": "post planner",
    "api:run-results": "get viewer",
    "api:run-export": "get viewer",
    "api:run-savings": "get viewer",
    "api:run-sensitivity": "get viewer",
    "api:run-sweep": "get viewer",
    "api:run-tables": "get viewer",
    "api:run-table": "get viewer",
    "api:versions": "get viewer",
    "api:versions-between": "get viewer",
    "api:version": "get viewer",
    "api:version-restore": "post planner",
    "api:version-branch": "post planner",
    "api:proposals": "get viewer, post viewer",
    "api:proposal": "get viewer",
    "api:proposal-difference": "get viewer",
    "api:proposal-comments": "post viewer",
    "api:proposal-approve": "post approver",
    "api:proposal-changes": "post approver",
    "api:proposal-reject": "post approver",
    "api:proposal-withdraw": "post admin",
    "api:proposal-ready": "post admin",
    "api:proposal-amend": "post viewer",
    "api:proposal-reviewers": "post viewer",
    "api:review-rules": "get viewer, put viewer",
    "api:audit": "get admin",
    "api:run-month": "post planner",
    "api:schedules": "get viewer, post viewer",
    "api:schedule": "get viewer, patch planner, delete admin",
    "api:schedule-pause": "post planner",
    "api:schedule-resume": "post planner",
    "api:schedule-fire": "post planner",
    "api:schedule-firings": "get viewer",
    "api:firing": "get viewer",
    "api:outcomes": "get viewer",
    "api:outcome": "get viewer",
    "api:digest": "get viewer",
    "api:kept-plans": "get viewer",
    "api:kept-plans-between": "get viewer",
    "api:kept-plan": "get viewer",
    "api:kept-plan-restore": "post approver",
    "api:kept-plan-branch": "post planner",
    "api:in-force": "get viewer, post viewer, delete approver",
}


def kept_client(user: User | None, *, api: bool) -> Client:
    """Signed in by a session, as both tables may be asked."""
    client: Client = APIClient() if api else Client()
    client.raise_request_exception = False
    if user is not None:
        client.force_login(user)
    return client


@contextmanager
def undone() -> Iterator[None]:
    with transaction.atomic():
        yield
        transaction.set_rollback(True)


def asked(client: Any, method: str, url: str) -> int:
    """The status, whatever was changed undone. To read changes nothing that a status depends on,
    and undoing takes a third of the time."""
    cookies = dict(client.cookies)
    json = {"format": "json"} if isinstance(client, APIClient) and method != "get" else {}
    with nullcontext() if method == "get" else undone():
        answer = getattr(client, method)(url, **json)
    client.cookies.clear()
    client.cookies.update(cookies)
    assert answer.status_code < 500, f"{method} {url}: {answer.status_code}"
    if answer.status_code == REDIRECT and "/login/" in answer.headers["Location"]:
        return 401
    return int(answer.status_code)


def allowed(client: Any, url: str) -> list[str]:
    """Methods that an address of the API names."""
    names = client.options(url).headers["Allow"].lower().split(", ")
    return [name for name in names if name not in ("head", "options")]


@dataclass(frozen=True)
class Address:
    """One's own thing, one of another workspace, and one that there is not ("" for addresses of no
    thing)."""

    name: str
    mine: str
    theirs: str = ""
    nothing: str = ""


def addresses(patterns: Any, kind: str, home: Objects, foreign: Objects) -> Iterator[Address]:
    # What removes things comes last: their files are not put back.
    for pattern in sorted(patterns, key=lambda route: "delete" in (route.name or "")):
        view, names = f"{kind}:{pattern.name}", list(pattern.pattern.converters)
        if pattern.name == "welcome":
            yield Address(view, reverse(view, args=["x", "y"]))
        elif pattern.name and not names:
            yield Address(view, reverse(view))
        elif pattern.name:
            ours, theirs = (
                objects.arguments(str(pattern.pattern), names) for objects in (home, foreign)
            )
            none = theirs | {names[0]: 10**9 if isinstance(theirs[names[0]], int) else "nothing"}
            urls = [reverse(view, kwargs=arguments) for arguments in (ours, theirs, none)]
            yield Address(view, *(urls if ours != theirs else urls[:1]))


def least(answers: dict[str, int]) -> str:
    """The least role that is let in, or all of them where not every higher one is."""
    let_in = [role for role in ROLES if answers[role] not in GONE]
    if not let_in:
        return NOBODY
    all_above = let_in == list(ROLES[ROLES.index(let_in[0]) :])
    return let_in[0] if all_above else "+".join(let_in)


@pytest.mark.parametrize("kind", ["web", "api"])
def test_every_address_lets_in_whom_it_says_and_finds_nothing_of_another_workspace(
    db: None,
    admin: User,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
    kind: str,
) -> None:
    logging.disable()  # of every refusal
    request.addfinalizer(lambda: logging.disable(logging.NOTSET))
    # What is answered is asked, not how it looks.
    monkeypatch.setattr("django.template.loader.render_to_string", lambda *_, **__: "")
    monkeypatch.setattr("planner.api.schema.Generator.get_schema", lambda *_, **__: {})
    monkeypatch.setattr(
        "rest_framework.throttling.SimpleRateThrottle.allow_request", lambda *_: True
    )
    maker = User.objects.create_user("maker", role="planner")
    home = made(maker, "own")
    with use_workspace(Workspace.objects.create(name="Other", slug="other")):
        maker.join(current_workspace(), "planner")
        foreign = made(maker, "their")
    people: dict[str, User | None] = {EVERYBODY: None, "admin": admin}
    people |= {
        role: User.objects.create_user(f"some-{role}", role=role if role != "none" else None)
        for role in ROLES[1:5]
    }
    clients = {role: kept_client(user, api=kind == "api") for role, user in people.items()}
    admitted: dict[str, str] = {}
    leaks: list[str] = []
    patterns = web_patterns if kind == "web" else api_patterns
    for address in addresses(patterns, kind, home, foreign):
        answered = []
        for method in METHODS if kind == "web" else allowed(clients["admin"], address.mine):
            answers = {"admin": asked(clients["admin"], method, address.mine)}
            if answers["admin"] == 405:
                continue
            answers |= {role: asked(clients[role], method, address.mine) for role in ROLES[:-1]}
            answered.append(f"{method} {least(answers)}")
            let_in = [role for role in ROLES[2:] if answers[role] not in GONE]
            for role in {*let_in[:1], "admin"} if address.theirs else ():
                status = asked(clients[role], method, address.theirs)
                # What is sent may be refused first, then of what there is not, too.
                if status not in GONE and status != asked(clients[role], method, address.nothing):
                    leaks.append(f"{role}: {method} {address.theirs}: {status}")
        admitted[address.name] = ", ".join(answered)
    assert not leaks
    needed = {name: needs for name, needs in NEEDS.items() if name.startswith(kind)}
    assert admitted == needed
