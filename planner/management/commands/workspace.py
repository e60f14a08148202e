"""``bin/manage workspace``: manage the workspaces of this installation."""

from argparse import ArgumentParser, Namespace

from planner.errors import PlannerError
from planner.management.base import Document, HeadroomCommand
from planner.models import Workspace
from planner.models.workspace import workspace_of
from planner.outputs.table_text import table_lines
from planner.selectors.people import workspaces_list
from planner.services import workspaces
from planner.services.workspaces import workspace_remove

ACTIONS = {
    "add": "add workspace NAME, with --slug for addresses and commands",
    "rename": "set --name of the workspace with slug NAME",
    "remove": "write the workspace with slug NAME to a file, then remove it; needs --confirm",
    "ask-factor": "require a second factor in the workspace with slug NAME",
    "waive-factor": "undo ask-factor",
    "list": "list workspaces",
}
COLUMNS = {"workspace": "workspace", "name": "name", "people": "people", "runs": "runs"}


class Command(HeadroomCommand):
    help = "Add, rename, list and remove workspaces."
    examples = (
        "workspace list",
        "workspace add Research",
        'workspace rename research --name "Research team"',
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        words = "; ".join(f"{action}: {does}" for action, does in ACTIONS.items())
        parser.add_argument("action", choices=list(ACTIONS), help=words)
        parser.add_argument(
            "which", nargs="?", metavar="NAME", help="workspace (all actions except list)"
        )
        parser.add_argument("--slug", default="", help="slug. Default: made from the name")
        parser.add_argument("--confirm", default="", help="remove: the slug again")
        parser.add_argument("--name", default="", help="rename: the new name")

    def answer(self, options: Namespace) -> Document:
        """Carry out the action, and return the workspace, or all workspaces for "list"."""
        action, name_or_slug = options.action, options.which
        if action == "list":
            return {"workspaces": [_workspace_line(workspace) for workspace in workspaces_list()]}
        if not name_or_slug:
            raise PlannerError(f"workspace {action}: the name is missing. Give it after {action}.")
        if action == "add":
            added = workspaces.workspace_add(by=None, name=name_or_slug, slug=options.slug)
            return {"workspace": added.slug, "name": added.name}
        workspace = workspace_of(name_or_slug)
        if action == "remove":
            slug, name = workspace.slug, workspace.name
            removal = workspace_remove(by=None, workspace=workspace, confirm=options.confirm)
            return {"workspace": slug, "name": name, "rows": removal.rows, "path": removal.path}
        if action == "rename":
            workspaces.workspace_rename(by=None, workspace=workspace, name=options.name)
        else:
            is_required = action == "ask-factor"  # else waive-factor
            workspaces.workspace_require_second_factor(
                by=None, workspace=workspace, second_factor=is_required
            )
        return {"workspace": workspace.slug, "name": workspace.name}

    def words(self, answer: Document) -> str:
        """Return the workspaces as a table, or the changed workspace in a line."""
        if "workspaces" in answer:
            return "\n".join(table_lines(answer["workspaces"], COLUMNS))
        if "path" in answer:
            return (
                f"{answer['name']} is removed. Its {answer['rows']:,} rows are stored in "
                f"{answer['path']}"
            )
        return f"{answer['workspace']}: {answer['name']}"


def _workspace_line(workspace: Workspace) -> Document:
    """Return a workspace as JSON data."""
    return {
        "workspace": workspace.slug,
        "name": workspace.name,
        "people": workspace.people,  # type: ignore[attr-defined]
        "runs": workspace.runs,  # type: ignore[attr-defined]
    }
