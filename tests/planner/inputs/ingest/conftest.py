"""Small files written by hand, and the shared data where it is there."""

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zstandard

from planner.inputs.ingest import IngestOptions, IngestReport, ingest_file
from tests import shared_folder as oracles

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"

Ingest = Callable[..., IngestReport]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def ingest(tmp_path: Path, store: Path) -> Ingest:
    """Write ``content`` to a file called ``file`` and read it into ``store``."""

    def run(content: str | bytes, file: str = "t.csv", **options: Any) -> IngestReport:
        path = tmp_path / file
        data = content.encode() if isinstance(content, str) else content
        if file.endswith(".gz"):
            data = gzip.compress(data)
        elif file.endswith(".zst"):
            data = zstandard.compress(data)
        path.write_bytes(data)
        return ingest_file(path, store, IngestOptions(**options))

    return run


@pytest.fixture
def shared() -> Callable[[str], Path]:
    """A trace of the shared data; the test is skipped where it is absent."""
    return lambda name: oracles.shared(oracles.TRACES / name)
