"""Read traces: any known file format in, a column store and a report out.

The package knows files, not Django. Reading order: ``reader`` (the entry point), ``source``
(bytes), ``tables`` with ``csv_text`` and ``json_text`` (rows), ``columns`` and ``clock`` (their
meaning). Then ``requests`` and ``demand`` (the two kinds of file) and ``store`` (writing and
reading the store).
"""

from planner.inputs.ingest.formats import FORMATS
from planner.inputs.ingest.options import IngestOptions
from planner.inputs.ingest.reader import Preview, ingest_file, preview
from planner.inputs.ingest.report import IngestReport
from planner.inputs.ingest.source import sha256_file
from planner.inputs.ingest.store import (
    DemandColumns,
    bin_requests,
    is_complete,
    read_demand,
    read_report,
    read_requests,
)
