"""Results of parts survive being written and read, to the last bit, and reading runs no code."""

from dataclasses import dataclass, field
from datetime import UTC, datetime
from math import inf, nan

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.domain.encoding import decode, encode
from planner.domain.recommend.rule import CaseResult
from planner.errors import DamagedFile
from planner.policies.base import Group
from simulation.fleet import KvLink

plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: (
        st.lists(inner)
        | st.tuples(inner, inner)
        | st.dictionaries(st.none() | st.text() | st.floats(allow_nan=False), inner)
    ),
    max_leaves=20,
)


@given(plain)
def test_plain_values_come_back_as_they_were(value):
    assert decode(encode(value)) == value


@given(st.lists(st.floats(width=64), min_size=1))
def test_arrays_come_back_to_the_last_bit(values):
    for array in (np.array(values), np.arange(len(values)), np.array(values) > 0):
        back = decode(encode({"a": array}))["a"]
        assert back.dtype == array.dtype and back.tobytes() == array.tobytes()
        assert not back.flags.writeable


def test_dataclasses_tables_enums_and_moments_come_back():
    table = pl.DataFrame({"a": [1.5, None, nan], "b": ["x", "y", None]})
    value = (
        CaseResult(1.5, {"chat": 0.95}, 0.0),
        KvLink(kv_bytes_per_token=1.0, bytes_s=inf),
        Group.REACTIVE,
        datetime(2024, 5, 1, 12, tzinfo=UTC),
        np.float64(0.1),
        table,
    )
    back = decode(encode(value))
    assert back[:5] == value[:5] and type(back[4]) is np.float64
    assert back[5].equals(table)


def test_shared_objects_are_not_copied():
    link = KvLink(kv_bytes_per_token=1.0, bytes_s=2.0)
    same = decode(encode({"link": [link, link]}, [link]), [link])
    assert same["link"][0] is link and same["link"][1] is link


@dataclass
class Foreign:
    value: int = field(default=1)


@pytest.mark.parametrize("value", [Foreign(), object(), len, {1, 2}, np.array([object()])])
def test_what_cannot_be_read_back_is_not_written(value):
    with pytest.raises(TypeError):
        encode(value)


@pytest.mark.parametrize("content", [b"", b"nonsense", encode({"a": 1})[:-3]])
def test_damaged_bytes_are_named_as_such(content):
    with pytest.raises(DamagedFile):
        decode(content)


def test_reading_builds_nothing_outside_the_project(monkeypatch):
    monkeypatch.setattr("planner.domain.encoding._name", lambda kind: ("subprocess", "Popen"))
    content = encode(CaseResult(1.5, {}, 0.0))
    with pytest.raises(DamagedFile):
        decode(content)
