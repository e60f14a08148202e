"""Read results that tools write as text: printed blocks, MLPerf's logs, tables, YAML reports."""

import re
from collections.abc import Iterator
from itertools import pairwise

from planner.errors import IngestError
from planner.files.documents import csv_rows, yaml_documents
from planner.inputs.ingest.json_text import json_object

MAX_CHARACTERS = 1_000_000
LINES_ABOVE = 9  # of settings above a printed block
_PRINTED = "Serving Benchmark Result"  # of vLLM and SGLang
_JSON_KEYS = {  # of a printed line in the JSON of the same tool, where the words differ
    "successful_requests": "completed",
    "failed_requests": "failed",
    "benchmark_duration_s": "duration",
    "total_generated_tokens": "total_output_tokens",
    "maximum_request_concurrency": "max_concurrency",
    "max_request_concurrency": "max_concurrency",
    "request_throughput_req_s": "request_throughput",
    "output_token_throughput_tok_s": "output_throughput",
}
_SUMMARY, _DETAIL = "MLPerf Results Summary", ":::MLLOG"
_END = re.compile(r"^=+\s*$", re.MULTILINE)  # of a printed block
_LINE = re.compile(r"^\s*(\S.*?)\s*:\s*(\S.*?)\s*$", re.MULTILINE)
_YAML = re.compile(r"^(results|metrics|scenario):\s*$", re.MULTILINE)


def text_documents(text: str, name: str) -> list[dict[str, object]]:
    """Return results that a tool wrote as text (log, table, YAML); [] for another file."""
    if _PRINTED in text:
        return [*_parse_printed_results(text)]
    if _SUMMARY in text:  # MLPerf, as text
        runs = [dict(_LINE.findall(part)) for part in text.split(_SUMMARY)[1:]]
        return [_server_facts(run, "Mean First Token latency (ns)", name) for run in runs]
    if text.lstrip().startswith(_DETAIL):  # MLPerf, as one JSON object per line
        facts: dict[str, object] = {}
        for line in text.splitlines():
            entry = json_object(line.partition(_DETAIL)[2])
            if entry:
                facts[str(entry.get("key"))] = entry.get("value")
        return [_server_facts(facts, "result_first_token_mean_latency_ns", name)]
    if text.lstrip().startswith("Metric,"):  # AIPerf or GenAI-Perf, as CSV
        return [_metrics(text, name)]
    # The rest is YAML, if it has two of its headings.
    if text.lstrip()[0] in "{[" or len(_YAML.findall(text)) < 2:
        return []
    if len(text) > MAX_CHARACTERS:
        raise IngestError(f"{name} is longer than a report. Give one report per file.")
    documents = yaml_documents(text, name, IngestError)
    return [document for document in documents if isinstance(document, dict)]


def _parse_printed_results(text: str) -> Iterator[dict[str, object]]:
    """Yield the results that a benchmark prints as text, with the keys of its JSON result."""
    for above, below in pairwise(text.split(_PRINTED)):
        # The number in flight may be printed above the block.
        settings = _LINE.findall(above)[-LINES_ABOVE:]
        lines = [(title, value) for title, value in settings if "concurrency" in title]
        block, *_ = _END.split(below)
        result = {}
        for title, value in (*lines, *_LINE.findall(block)):
            key = "_".join(re.findall(r"[a-z0-9]+", title.lower()))
            result[_JSON_KEYS.get(key, key)] = value
        yield {key: value for key, value in result.items() if value not in ("None", "not set")}


def _metrics(text: str, name: str) -> dict[str, object]:
    """Return a CSV table of metrics of AIPerf or GenAI-Perf, with the structure of their JSON."""
    metrics: dict[str, object] = {}
    names: list[str] = []
    for _, cells in csv_rows(text, name, IngestError):
        title, *figures = cells or [""]
        if title.strip() == "Metric":
            names = [name.strip() for name in figures]
        elif figures:
            values = dict(zip(names, figures, strict=False))
            unit = re.search(r"\((.*?)\)", title)
            values["unit"] = unit[1] if unit else ""
            if "Value" in values:
                values["avg"] = values["Value"]
            metrics["_".join(re.sub(r"\(.*?\)", "", title).lower().split())] = values
    return metrics


def _server_facts(facts: dict[str, object], key: str, name: str) -> dict[str, object]:
    """Return ``facts`` of an MLPerf run; raise IngestError without the latency ``key``."""
    if key not in facts:
        scenario = facts.get("Scenario") or facts.get("effective_scenario") or "this"
        raise IngestError(
            f"{name}: MLPerf's {scenario} scenario has no times of tokens. Give the log of the "
            "Server scenario with token latencies."
        )
    return facts
