"""``bin/manage user``: manage the people of a workspace and their roles."""

import json
from argparse import ArgumentParser, Namespace

from django.core.serializers.json import DjangoJSONEncoder

from planner.errors import PlannerError
from planner.management.base import Document, HeadroomCommand
from planner.models import User
from planner.outputs.table_text import table_lines
from planner.selectors.people import people_list, person_get
from planner.services import people, workspaces
from planner.services.account_removal import account_data, account_remove
from planner.services.oidc import identity_link
from planner.services.second_factor import factor_reset

ACTIONS = {
    "add": "add a person with --role; prints the address to choose a password",
    "invite": "print a new address to choose a password",
    "role": "set the role to --role",
    "join": "add an existing account to the workspace, with --role",
    "leave": "remove NAME from the workspace; the account stays",
    "promote": "make NAME an admin of the installation",
    "demote": "undo promote",
    "end-factor": "end a lost second factor",
    "link": "let NAME sign in by the identity provider as --subject",
    "disable": "end access; data stays",
    "enable": "restore access",
    "data": "export all data about NAME as JSON",
    "remove": "remove the account; its data passes to --to; needs --confirm NAME",
    "list": "list people",
}
COLUMNS = {"user": "user", "role": "role", "signs in": "active", "last time": "last_login"}


class Command(HeadroomCommand):
    help = "Add people, set roles, and end access."
    examples = ("user add anna --role planner", "user role anna --role approver", "user list")

    def add_arguments(self, parser: ArgumentParser) -> None:
        words = "; ".join(f"{action}: {does}" for action, does in ACTIONS.items())
        parser.add_argument("action", choices=list(ACTIONS), help=words)
        parser.add_argument("name", nargs="?", help="user name (all actions except list)")
        parser.add_argument("--subject", default="", help="link: sub of the person at the provider")
        parser.add_argument("--to", default="", help="remove: new owner of the data")
        parser.add_argument(
            "--confirm", default="", help="for remove: the same name, as confirmation"
        )
        parser.add_argument("--role", help=f"one of {', '.join(User.Role.values)}")

    def answer(self, options: Namespace) -> Document:
        """Carry out the action, and return the person, or all people for "list"."""
        action, name, role = options.action, options.name, options.role
        if action == "list":
            return {"users": [_person_line(person) for person in people_list()]}
        if not name:
            raise PlannerError(f"user {action}: the name is missing. Give it after {action}.")
        if action in ("add", "join", "role") and role is None:
            roles = ", ".join(User.Role.values)
            raise PlannerError(f"user {action}: --role is missing. Choose from {roles}.")
        if action == "add":
            invited = people.person_invite(by=None, name=name, role=role)
            return _person_line(invited.person) | {"invitation": invited.path}
        if action == "join":
            return _person_line(workspaces.person_join(by=None, name=name, role=role))
        return self._answer_on(person_get(name), options)

    def _answer_on(self, person: User, options: Namespace) -> Document:
        """Carry out an action on a person, and return the person or what the action says."""
        match options.action:
            case "data":
                # The answer is printed as JSON, which does not know dates.
                text = json.dumps(account_data(person, by=None), cls=DjangoJSONEncoder)
                return dict(json.loads(text))
            case "remove":
                new_owner = person_get(options.to) if options.to else None
                passed = account_remove(
                    by=None, person=person, confirm=options.confirm, new_owner=new_owner
                )
                return {"removed": person.username, "passed": passed}
            case "invite":
                path = people.invitation_path(by=None, person=person)
                return _person_line(person) | {"invitation": path}
            case "leave":
                workspaces.person_leave(by=None, person=person)
            case "link":
                identity_link(person=person, subject=options.subject)
            case "end-factor":
                factor_reset(by=None, person=person)
            case "promote" | "demote":
                workspaces.installation_admin(person=person, on=options.action == "promote")
            case "role":
                people.person_change(by=None, person=person, role=options.role)
            case "disable" | "enable":
                people.person_change(by=None, person=person, active=options.action == "enable")
        return _person_line(person)

    def words(self, answer: Document) -> str:
        """Return the people as a table, or a person in a line with the invitation, if any."""
        if "users" in answer:
            return "\n".join(table_lines(answer["users"], COLUMNS))
        if "audit_log" in answer:
            return super().words(answer)
        if "removed" in answer:
            return f"{answer['removed']} is removed; {answer['passed']:,} items have a new owner."
        state = "" if answer["active"] else ", who can no longer sign in"
        role = answer["role"] or "no longer in this workspace"
        lines = [f"{answer['user']}: {role}{state}"]
        if "invitation" in answer:
            lines.append(
                f"The password is chosen once, within three days, at {answer['invitation']}"
            )
        return "\n".join(lines)


def _person_line(person: User) -> Document:
    """Return a person as JSON data."""
    return {
        "user": person.username,
        "role": "admin" if person.is_superuser else person.role,
        "active": person.is_active,
        "last_login": person.last_login.isoformat() if person.last_login else None,
    }
