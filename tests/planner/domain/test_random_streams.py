"""Streams have names, one place, and the bytes that results were made with."""

import re
from pathlib import Path

import numpy as np
import pytest

from planner.domain.random_streams import Stream, generator

STUDIES = Path(__file__).parents[3] / "planner" / "domain"


@pytest.mark.parametrize(("stream", "number"), [("REQUESTS", 1), ("AHEAD", 2), ("SOURCES", 3),
                                                ("PRESSURE", 7)])  # fmt: skip
def test_a_stream_draws_the_same_bytes_as_ever(stream: str, number: int) -> None:
    drawn = generator(5, Stream[stream]).bytes(64)
    assert drawn == np.random.default_rng([5, number]).bytes(64)
    assert drawn != np.random.default_rng(5).bytes(64)  # which sizing draws from


def test_every_generator_of_a_study_is_a_named_stream() -> None:
    bare = [
        path.name
        for path in STUDIES.rglob("*.py")
        if re.search(r"\bdefault_rng\(", path.read_text(encoding="utf-8"))
    ]
    assert bare == ["random_streams.py"]
