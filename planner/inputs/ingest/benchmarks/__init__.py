"""Read benchmark rows from the files of benchmark tools, as one type in seconds and tokens.

``reader`` opens a file and detects its format. ``csv_rows`` reads tables (splitwise, SageServe,
WVA, plain). ``results`` reads the JSON of tools that are declared in ``tools``.
"""

from planner.inputs.ingest.benchmarks.reader import (
    BENCHMARK_FORMATS,
    BenchmarkFile,
    read_benchmarks,
)
