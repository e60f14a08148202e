"""Reading traces: any of the known files in, a column store and an account of it out.

Knows files, not Django. Read in this order: ``reader`` (the entry point), ``source`` (bytes),
``tables`` with ``csv_text`` and ``json_text`` (rows), ``columns`` and ``clock`` (what they mean),
``requests`` and ``demand`` (the two kinds of file), ``store`` (what is kept, and reading it back).
"""

from planner.ingest.formats import FORMATS
from planner.ingest.options import IngestOptions
from planner.ingest.preview import Preview, preview
from planner.ingest.reader import ingest_file
from planner.ingest.report import IngestReport, Reject, SeriesReport
from planner.ingest.source import sha256_file
from planner.ingest.store import (
    DemandColumns,
    RequestColumns,
    bin_requests,
    is_complete,
    read_demand,
    read_report,
    read_requests,
    scan_requests,
)

__all__ = [
    "FORMATS",
    "DemandColumns",
    "IngestOptions",
    "IngestReport",
    "Preview",
    "Reject",
    "RequestColumns",
    "SeriesReport",
    "bin_requests",
    "ingest_file",
    "is_complete",
    "preview",
    "read_demand",
    "read_report",
    "read_requests",
    "scan_requests",
    "sha256_file",
]
