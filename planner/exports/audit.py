"""The audit log as a file, the oldest record first, so that it can be checked where it is kept."""

from __future__ import annotations

import json

from planner.selectors.audit import FIELDS, audit_list, audit_rows
from planner.spreadsheets import csv_of


def audit_csv() -> str:
    rows = audit_rows(audit_list().order_by("number"))
    return csv_of([list(FIELDS), *([row[name] for name in FIELDS] for row in rows)])


def audit_json() -> str:
    return json.dumps({"records": list(audit_rows(audit_list().order_by("number")))}, indent=1)
