"""A real Prometheus, and an exporter that shows an engine's counters as a trace is replayed."""

import json
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlencode

import pytest

from planner.config.child_processes import die_with_parent
from tests.local_http import Handler, serving
from tests.programs import find_program

STARTS_WITHIN_S = 180.0
BOUNDS = (1, 10, 100, 1000, 10_000)  # tokens
LATENCIES = (0.1, 0.5, 1.0, 5.0)  # s


@dataclass(slots=True)
class Engine:
    """What vLLM tells of one model; ``fail`` has the scrape fail."""

    model: str
    requests: int = 0
    input_tokens: list[int] = field(default_factory=list)
    output_tokens: list[int] = field(default_factory=list)
    ttft_s: list[float] = field(default_factory=list)
    waiting: int = 0
    kv_use: float = 0.0
    fail: bool = False

    def finish(self, input_tokens: int, output_tokens: int, ttft_s: float = 0.3) -> None:
        self.requests += 1
        self.input_tokens.append(input_tokens)
        self.output_tokens.append(output_tokens)
        self.ttft_s.append(ttft_s)

    def restart(self) -> None:
        self.requests = 0
        for values in (self.input_tokens, self.output_tokens, self.ttft_s):
            values.clear()

    def text(self) -> str:
        labels = f'model_name="{self.model}",engine="0"'
        lines = [
            f'vllm:request_success_total{{{labels},finished_reason="stop"}} {self.requests}',
            f"vllm:num_requests_waiting{{{labels}}} {self.waiting}",
            f"vllm:num_requests_running{{{labels}}} 2",
            f"vllm:gpu_cache_usage_perc{{{labels}}} {self.kv_use}",
            "DCGM_FI_DEV_POWER_USAGE 300",
        ]
        for name, values, bounds in (
            ("vllm:request_prompt_tokens", self.input_tokens, BOUNDS),
            ("vllm:request_generation_tokens", self.output_tokens, BOUNDS),
            ("vllm:time_to_first_token_seconds", self.ttft_s, LATENCIES),
        ):
            lines += [
                f'{name}_bucket{{{labels},le="{b}"}} {sum(v <= b for v in values)}' for b in bounds
            ]
            lines.append(f'{name}_bucket{{{labels},le="+Inf"}} {len(values)}')
            lines += [
                f"{name}_sum{{{labels}}} {sum(values)}",
                f"{name}_count{{{labels}}} {len(values)}",
            ]
        return "\n".join(lines) + "\n"


@contextmanager
def exporter(engine: Engine) -> Iterator[str]:
    """HOST:PORT at which it is scraped."""

    class Metrics(Handler):
        def do_GET(self) -> None:
            text = b"" if engine.fail else engine.text().encode()
            kind = {"Content-Type": "text/plain; version=0.0.4"}
            self.answer(500 if engine.fail else 200, text, kind)

    with serving(Metrics) as address:
        yield address


def remembered(folder: Path, counters: Mapping[str, Sequence[tuple[int, float]]]) -> None:
    """Have ``prometheus(folder)`` know of a past: moments (epoch seconds) and values of series."""
    lines = []
    for series, samples in counters.items():
        lines.append(f"# TYPE {series.partition('{')[0]} unknown")
        lines += [f"{series} {value!r} {moment}" for moment, value in samples]
    text = folder / "past.txt"
    text.write_text("\n".join([*lines, "# EOF", ""]))
    promtool = find_program("promtool") or pytest.skip("promtool is not installed")
    # In few blocks: each is synced to the disk, and one of two hours is the default.
    command = [promtool, "tsdb", "create-blocks-from", "--max-block-duration=240h"]
    command += ["openmetrics", "-q", str(text), str(folder / "tsdb")]
    subprocess.run(command, check=True, capture_output=True)


@contextmanager
def prometheus(folder: Path, targets: Sequence[str] = ()) -> Iterator[str]:
    """The URL of one that scrapes ``targets`` every second; the test skips where there is none."""
    program = find_program("prometheus")
    if program is None:
        pytest.skip(
            "Prometheus is not installed (Debian's package prometheus); bin/test installs it"
        )
    listed = ", ".join(f"'{target}'" for target in targets)
    config = folder / "prometheus.yml"
    config.write_text(
        "global: {scrape_interval: 1s}\n"
        f"scrape_configs: [{{job_name: vllm, static_configs: [{{targets: [{listed}]}}]}}]\n"
    )
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [
        program, f"--config.file={config}", f"--storage.tsdb.path={folder / 'tsdb'}",
        f"--web.listen-address=127.0.0.1:{port}", "--log.level=error",
    ]  # fmt: skip
    url = f"http://127.0.0.1:{port}"
    with (folder / "prometheus.log").open("wb") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log, preexec_fn=die_with_parent)
        try:
            _wait(server, url, folder / "prometheus.log")
            yield url
        finally:
            server.terminate()
            server.wait(timeout=STARTS_WITHIN_S)


def await_value(url: str, query: str, expected: float) -> None:
    """Until an instant query gives ``wanted``: what is shown has been scraped."""
    deadline = time.monotonic() + STARTS_WITHIN_S
    asked = f"{url}/api/v1/query?{urlencode({'query': query})}"
    result: object = None
    while time.monotonic() < deadline:
        with suppress(OSError), urllib.request.urlopen(asked, timeout=5) as answer:
            result = json.load(answer)["data"]["result"]
        if result and float(result[0]["value"][1]) == expected:
            return
        time.sleep(0.1)
    pytest.fail(f"{query} is {result}, not {expected}")


def _wait(server: subprocess.Popen[bytes], url: str, log: Path) -> None:
    deadline = time.monotonic() + STARTS_WITHIN_S
    while time.monotonic() < deadline and server.poll() is None:
        with suppress(OSError), urllib.request.urlopen(f"{url}/-/ready", timeout=5):
            return
        time.sleep(0.1)
    pytest.fail(f"Prometheus did not start: {log.read_text(errors='replace')[-500:]}")
