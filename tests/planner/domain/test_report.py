"""Reports: laws of their blocks, and results read back from what is stored."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from planner.domain.deserialise import from_json
from planner.domain.report import Form, Head, Table, shortfall, table
from planner.domain.serialise import KEY, MERGED, OPTIONAL, as_json

FLOATS = st.floats(0, 1e6)


@dataclass(frozen=True, slots=True)
class Inner:
    rate: float | None
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    at: datetime
    inner: Inner = field(metadata={MERGED: True})
    rows: tuple[Inner, ...]
    by_name: dict[str, Inner]
    grid: tuple[tuple[int, ...], ...]
    named: int = field(metadata={KEY: "other"})
    later: Inner | None = field(default=None, metadata={OPTIONAL: True})


INNERS = st.builds(Inner, st.none() | FLOATS, st.text(max_size=5))
STORED = st.builds(
    Stored,
    at=st.just(datetime(2024, 5, 18, 12, tzinfo=UTC)),
    inner=INNERS,
    rows=st.lists(INNERS, max_size=3).map(tuple),
    by_name=st.dictionaries(st.text(max_size=3), INNERS, max_size=3),
    grid=st.lists(st.tuples(st.integers(), st.integers()), max_size=3).map(tuple),
    named=st.integers(),
    later=st.none() | INNERS,
)


@given(STORED)
def test_a_result_is_read_back_as_it_was(stored: Stored) -> None:
    assert from_json(Stored, as_json(stored)) == stored


def test_a_key_that_an_older_version_did_not_write_is_none() -> None:
    assert from_json(Inner, {"name": "m"}) == Inner(None, "m")


@given(st.lists(st.tuples(FLOATS, FLOATS), min_size=1))
def test_the_shortfall_is_what_demand_has_above_capacity(pairs: list[tuple[float, float]]) -> None:
    demand, capacity = zip(*pairs, strict=True)
    band = shortfall(range(len(pairs)), demand, capacity)
    missing = [max(0.0, wanted - served) for wanted, served in pairs]
    if band is None:
        assert not any(missing)
    else:
        heights = [high - low for high, low in zip(band.y, band.low, strict=True)]
        assert heights == missing


def test_a_column_without_any_value_is_left_out() -> None:
    made = table(
        [1, 2],
        (Head("n", Form.COUNT), lambda n: n),
        (Head("none"), lambda n: None),
        (Head("some"), lambda n: "x" if n == 2 else ""),
        marked=lambda n: n == 2,
    )
    assert [head.text for head in made.heads] == ["n", "some"]
    assert made.rows == ((1, ""), (2, "x")) and made.marked == {1}


@given(st.lists(st.floats(0.1, 1e5), min_size=1, max_size=8))
def test_numbers_of_a_column_have_the_same_decimals(values: list[float]) -> None:
    largest = max(values)
    near = [value for value in values if value > largest / 10]
    texts = Table((Head("x", Form.NUMBER),), tuple((value,) for value in near)).texts()
    decimals = {len(text.partition(".")[2]) for (text,) in texts}
    assert len(decimals) == 1
    for (text,), value in zip(texts, near, strict=True):
        assert abs(float(text.replace(",", "")) - value) <= largest * 0.005
