"""Coverage-guided fuzzing of everything that reads what people send: does anything escape?

    python -m bench.fuzz [--json] [--minutes 10] [--reader NAME ...]

Needs atheris (`pip install atheris==3.0.0`, 35 MB), which follows the branches of ``planner`` and
``simulation`` by libFuzzer; each reader runs in a process of its own, from the project's own valid
files. A refusal in a sentence is right; anything else that is raised *escapes*, as does an input
that takes over ``SLOW_S`` or 2 GB. The corpus stays in var/fuzz/NAME from run to run, what escaped
in var/fuzz/escapes.

- ``escapes``: places of the program where something else than a sentence came out, all readers.
- ``executions``: inputs tried, by reader.
"""

from __future__ import annotations

import argparse
import io
import json
import logging
import os
import re
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
KEPT = ROOT / "var" / "fuzz"
EXAMPLES = ROOT / "docs" / "examples"
SLOW_S, MEMORY_MB, LONGEST = 20, 2000, 20_000
Reader = Callable[[bytes], object]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--minutes", type=float, default=10.0, help="of each reader")
    parser.add_argument("--reader", action="append", choices=sorted(SEEDS), default=[])
    parser.add_argument("--inside", choices=sorted(SEEDS), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.inside:
        fuzz(args.inside, args.minutes)
        return
    executions, escapes = {}, []
    for name in args.reader or sorted(SEEDS):
        tried, escaped = run_reader(name, args.minutes)
        executions[name] = tried
        escapes += escaped
    figures = {"escapes": len(escapes), "executions": executions, "where": escapes}
    print(json.dumps(figures) if args.json else json.dumps(figures, indent=2))


def run_reader(name: str, minutes: float) -> tuple[int, list[str]]:
    """Run the process that fuzzes one reader.

    Returns the number of inputs tried, and a line for each unexpected error.
    """
    report = KEPT / "escapes" / f"{name}.txt"
    report.parent.mkdir(parents=True, exist_ok=True)
    report.unlink(missing_ok=True)
    words = [sys.executable, "-m", "bench.fuzz", "--inside", name, "--minutes", str(minutes)]
    with tempfile.TemporaryDirectory(prefix="headroom-fuzz-") as folder:  # libFuzzer just ends
        within = {
            **os.environ,
            "TMPDIR": folder,
            "HEADROOM_DATA_DIR": f"{folder}/data",
            "HEADROOM_API_REQUESTS": "1000000000",
        }
        done = subprocess.run(
            words, cwd=ROOT, env=within, capture_output=True, text=True, check=False
        )
    tried = re.findall(r"^#(\d+)", done.stderr, re.MULTILINE)
    escaped = report.read_text(encoding="utf-8").splitlines() if report.exists() else []
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:]
        escaped.append(f"{name}: the process ended with {done.returncode}: {' '.join(last)}")
    return int(tried[-1]) if tried else 0, escaped


def fuzz(name: str, minutes: float) -> None:
    """Fuzz a reader for ``minutes``; libFuzzer ends the process."""
    os.environ.setdefault("HEADROOM_LOG_LEVEL", "ERROR")
    os.environ["DJANGO_SETTINGS_MODULE"] = "planner.config.settings"
    import atheris

    with atheris.instrument_imports(include=["planner", "simulation", "ruamel"]):
        import django

        django.setup()
        from planner.errors import EXPECTED, input_error_of

        read = reader(name)
    corpus = KEPT / name
    corpus.mkdir(parents=True, exist_ok=True)
    for i, seed in enumerate(SEEDS[name]()):
        (corpus / f"seed-{i}").write_bytes(seed[:LONGEST])
    seen: set[str] = set()
    report = KEPT / "escapes" / f"{name}.txt"

    def once(data: bytes) -> None:
        try:
            read(data)
        except EXPECTED:
            pass
        except Exception as problem:  # noqa: BLE001 - which ones there are is the question
            if input_error_of(problem) is not None:
                return
            where = place(problem)
            if where not in seen:
                seen.add(where)
                kept = report.with_name(f"{name}-{len(seen)}.bin")
                kept.write_bytes(data)
                with report.open("a", encoding="utf-8") as file:
                    file.write(f"{name}: {where} ({kept.name})\n")

    atheris.Setup(
        [
            "fuzz", str(corpus), f"-max_total_time={round(60 * minutes)}", f"-timeout={SLOW_S}",
            f"-rss_limit_mb={MEMORY_MB}", f"-max_len={LONGEST}",
            f"-artifact_prefix={KEPT}/escapes/",
        ],
        once,
    )  # fmt: skip
    atheris.Fuzz()


def place(problem: BaseException) -> str:
    """Return the innermost line of the product that raised an error, and the error."""
    frames = [
        f"{Path(frame.filename).relative_to(ROOT)}:{frame.lineno}"
        for frame in traceback.extract_tb(problem.__traceback__)
        if Path(frame.filename).is_relative_to(ROOT) and ".venv" not in frame.filename
    ]
    return f"{frames[-1] if frames else '?'} {type(problem).__name__}: {str(problem)[:120]!r}"


def reader(name: str) -> Reader:
    from planner.api.views.estimates import CsvRows
    from planner.inputs import catalogue
    from planner.inputs.catalogue.carbon import hourly_of_csv
    from planner.inputs.catalogue.huggingface import shape_of
    from planner.inputs.catalogue.price_lists import read_price_list
    from planner.inputs.fleet import read_fleet
    from planner.inputs.ingest import IngestOptions, ingest_file
    from planner.inputs.ingest.benchmarks.reader import read_benchmarks
    from planner.inputs.live.prometheus.address import address_of
    from planner.inputs.live.prometheus.client import (
        Access,
        Prometheus,
        QueryTimes,
    )
    from planner.inputs.profiles.kernel_files.reader import read_kernels
    from planner.inputs.scenario.document import outline, parse
    from planner.services.imports import read_description

    folder = Path(tempfile.mkdtemp(prefix="headroom-fuzz-"))

    def written(data: bytes, ending: str) -> Path:
        path = folder / f"input{ending}"
        path.write_bytes(data)
        return path

    def scenario(data: bytes) -> object:
        text = data.decode("utf-8", "replace")
        return parse(text), outline(text)

    def trace(ending: str) -> Reader:
        decode_in_one_process()
        small = IngestOptions(max_expanded_bytes=50_000_000)
        return lambda data: ingest_file(written(data, ending), folder / "store", small)

    def config(data: bytes) -> object:
        document = read_description(data, "config.json")
        return shape_of(document)

    class Answering(Prometheus):
        """A server that answers with ``content``."""

        content: object = None

        def _ask(self, what: str, body: bytes | None) -> Any:
            return self.content

    server = Answering(address_of("http://prom:9090"), Access())

    def answer(data: bytes) -> object:
        try:
            server.content = json.loads(data)
        except (ValueError, RecursionError):  # which the client refuses before
            return None
        return server.range("up", QueryTimes(1000, 10, 50))

    gpus = catalogue.gpus()
    if name == "api-bodies":
        return api_bodies(folder)
    readers: dict[str, Reader] = {
        "scenario": scenario,
        "trace-csv": trace(".csv"),
        "trace-jsonl": trace(".jsonl"),
        "trace-json": trace(".json"),
        "trace-log": trace(".log"),
        "trace-parquet": trace(".parquet"),
        "trace-gz": trace(".csv.gz"),
        "benchmark-csv": lambda data: read_benchmarks(written(data, ".csv")),
        "benchmark-json": lambda data: read_benchmarks(written(data, ".json")),
        "benchmark-text": lambda data: read_benchmarks(written(data, ".txt")),
        "fleet": lambda data: [
            pool.as_dict() for pool in read_fleet(data.decode("utf-8", "replace"))
        ],
        "kernels": lambda data: read_kernels(written(data, ".csv"), shapes={}, gpus=gpus),
        "price-list": lambda data: read_price_list(data, "prices.yml"),
        "price-list-csv": lambda data: read_price_list(data, "prices.csv"),
        "carbon": lambda data: hourly_of_csv(data.decode("utf-8", "replace")),
        "estimate-rows": lambda data: CsvRows().parse(io.BytesIO(data)),
        "prometheus": answer,
        "config": config,
    }
    return readers[name]


def api_bodies(folder: Path) -> Reader:
    """Return a reader that sends bodies as an admin to each address, and undoes the changes."""
    from django.core.management import call_command
    from django.test.utils import setup_test_environment
    from rest_framework.test import APIClient

    from bench.bodies import Choices, api_of, send
    from planner.models import User
    from planner.models.workspace import MAIN, current_workspace, enter

    call_command("migrate", verbosity=0)
    setup_test_environment()  # mail is kept, not sent
    enter(MAIN)
    admin = User.objects.create_user("admin")
    admin.join(current_workspace(), User.Role.ADMIN)
    client = APIClient(raise_request_exception=False)
    client.force_login(admin)
    api, bugs = api_of(admin, folder), Bugs()
    logging.getLogger("planner.api.errors").addHandler(bugs)

    def read(data: bytes) -> None:
        choices = Choices(data)
        action = api.action(choices)
        bugs.met = None
        answer = send(client, action, api.body(action, choices))
        if bugs.met is not None:
            raise bugs.met
        if answer.status_code >= 500:
            raise AssertionError(f"{action.name}: {answer.status_code} {answer.content[:200]!r}")

    return read


def decode_in_one_process() -> None:
    """Let one process decode Parquet input after input, because starting one takes longer.

    A new one starts after it dies, or after an answer was left in it.
    """
    from planner.files import parquet_rows

    class Warm(parquet_rows.Worker):
        kept: Warm | None = None

        def end(self) -> None:
            """It goes on."""

    def start() -> Warm:
        if (warm := Warm.kept) is None or warm.has_unread_answer or warm.process.poll() is not None:
            if warm is not None:
                parquet_rows.Worker.end(warm)
            warm = Warm.kept = Warm()
        return warm

    parquet_rows.start = start


class Bugs(logging.Handler):
    """What was logged last with its traceback: an error of the program."""

    met: BaseException | None = None

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno >= logging.ERROR and record.exc_info:
            self.met = record.exc_info[1]


def _examples(pattern: str) -> Callable[[], Iterator[bytes]]:
    return lambda: (path.read_bytes() for path in sorted(EXAMPLES.glob(pattern)))


def _texts(*texts: str) -> Callable[[], Iterator[bytes]]:
    return lambda: (text.encode() for text in texts)


def _of_connectors(ending: str, *texts: str) -> Callable[[], Iterator[bytes]]:
    """Return a function that yields texts, and the examples of connectors by file ending."""

    def examples() -> Iterator[bytes]:
        from planner.inputs.ingest.connectors import CONNECTORS

        yield from (text.encode() for text in texts)
        for connector in CONNECTORS.values():
            if connector.example["file"].endswith(ending):
                yield connector.example["text"].lstrip().encode()

    return examples


def _compressed_examples() -> Iterator[bytes]:
    import gzip

    yield gzip.compress(TRACE.encode())


def _parquet() -> Iterator[bytes]:
    import polars as pl

    for columns in (
        {"timestamp": [0.0, 1.0, 2.5], "input_tokens": [1, 20, 300], "output_tokens": [5, 6, 7]},
        {"time": ["2024-01-01T00:00:00Z", "2024-01-01T00:01:00Z"], "requests": [5, 6]},
    ):
        buffer = io.BytesIO()
        pl.DataFrame(columns).write_parquet(buffer, compression="uncompressed")
        yield buffer.getvalue()


TRACE = "timestamp,input_tokens,output_tokens,model\n0,100,10,a\n1.5,200,20,b\n2.5,1,1,a\n"
DEMAND = "time,requests,input_tokens,output_tokens\n2024-01-01T00:00:00Z,5,50,5\n"
ROWS = "model,gpu,tp,isl,osl,concurrency,ttft_ms,tpot_ms\nllama-3.1-8b,H100-SXM,1,512,128,4,30,9\n"
LINE = '{"timestamp": 0, "input_length": 10, "output_length": 2, "hash_ids": [1, 2]}\n'
VLLM = (
    '{"model_id": "m", "max_concurrency": 4, "completed": 9, "total_input_tokens": 90, '
    '"total_output_tokens": 90, "mean_ttft_ms": 30, "mean_tpot_ms": 9, "duration": 3}'
)
GUIDELLM = (
    '{"args": {"extras": {"gpu": "H100"}}, "benchmarks": [{"config": {"strategy": {"streams": 8}}, '
    '"metrics": {"inter_token_latency_ms": {"successful": {"median": 9}}}}]}'
)
MLPERF = (
    "MLPerf Results Summary\nScenario : Server\nCompleted samples per second : 10\n"
    "Mean latency (ns) : 9000000000\nMean First Token latency (ns) : 90000000\n"
)
MLPERF_DETAIL = (
    ':::MLLOG {"key": "result_completed_samples_per_sec", "value": 10}\n'
    ':::MLLOG {"key": "result_first_token_mean_latency_ns", "value": 90000000}\n'
)
REPORT = (
    "version: '0.1'\nscenario:\n  host:\n    accelerator: [{model: H100, count: 1}]\nmetrics:\n"
    "  requests: {total: 9}\n  latency:\n    time_to_first_token: {units: ms, mean: 90}\n"
)
FLEET = """\
kind: Deployment
metadata: {name: a}
spec:
  replicas: 2
  template:
    spec:
      nodeSelector: {cloud.google.com/gke-accelerator: nvidia-h100-80gb}
      containers:
        - {command: [vllm, serve, a/b, -tp, "2"], resources: {limits: {nvidia.com/gpu: "2"}}}
---
kind: ScaledObject
spec:
  scaleTargetRef: {name: a}
  minReplicaCount: 1
  triggers: [{type: prometheus, metadata: {query: "sum(vllm:num_requests_waiting)", threshold: 5m}}]
"""
LLMD = (
    "modelArtifacts: {name: a/b}\ndecode: {replicas: 5, parallelism: {tensor: 4, data: 2}}\n"
    "prefill: {create: true, containers: [{args: [--kv-cache-dtype, fp8]}]}\n"
)
CONFIG = (
    '{"model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "vocab_size": 128256,'
    '"num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336,'
    '"torch_dtype": "bfloat16", "quantization_config": {"quant_method": "fp8"}}'
)
PRICES_CSV = "region,gpu,on_demand,spot\nus-east,H100-SXM,2.5,1.1\n"
CARBON = "time,g\n" + "".join(f"2024-05-01T{hour:02}:00:00+01:00,{hour}.5\n" for hour in range(24))
ANSWER = (
    '{"resultType": "matrix", "result": [{"metric": {"model_name": "a"}, '
    '"values": [[1000, "5"], [1010, "NaN"], [1020.5, "7"]]}]}'
)
PRICES = "prices:\n- {region: us-east, gpu: H100-SXM, on_demand: 2.5, spot: 1.1}\n"
KERNELS = "op,latency_us,gpu,m,n,k,dtype\ngemm,12.5,H100-SXM,16,4096,4096,bf16\n"
SEEDS: dict[str, Callable[[], Iterator[bytes]]] = {
    "scenario": _examples("*.yml"),
    "trace-csv": _of_connectors(".csv", TRACE, DEMAND),
    "trace-jsonl": _of_connectors(".jsonl", LINE),
    "trace-json": _of_connectors(".json", f"[{LINE}]"),
    "trace-log": _of_connectors(".log"),
    "trace-parquet": _parquet,
    "trace-gz": _compressed_examples,
    "benchmark-csv": _texts(ROWS),
    "benchmark-json": _texts(VLLM, GUIDELLM),
    "benchmark-text": _texts(MLPERF, MLPERF_DETAIL, REPORT),
    "fleet": _texts(FLEET, LLMD, "docker run vllm/vllm-openai:v0.9 --model a/b -tp 2 -dp 4"),
    "kernels": _texts(KERNELS),
    "price-list": _texts(PRICES),
    "price-list-csv": _texts(PRICES_CSV),
    "carbon": _texts(CARBON),
    "estimate-rows": _texts(ROWS),
    "prometheus": _texts(ANSWER),
    "config": _texts(CONFIG),
    "api-bodies": lambda: (bytes([action]) for action in range(64)),
}


if __name__ == "__main__":
    main()
