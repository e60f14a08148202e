"""Write the audit log of a workspace, or the whole log, as a file, oldest record first."""

import json

from planner.files.csv_cells import csv_of
from planner.selectors.audit import FIELDS, audit_list, audit_rows


def audit_csv(everything: bool) -> str:
    """Return the audit log as CSV, of the current workspace or (``everything``) of all."""
    rows = audit_rows(audit_list(all_workspaces=everything).order_by("number"))
    return csv_of([list(FIELDS), *([row[name] for name in FIELDS] for row in rows)])


def audit_json(everything: bool) -> str:
    """Return the audit log as JSON, of the current workspace or (``everything``) of all."""
    rows = audit_rows(audit_list(all_workspaces=everything).order_by("number"))
    return json.dumps({"records": list(rows)}, indent=1)
