"""A trace with many labels or a very long span: sums over groups, and bounded lists."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from planner.domain.trace_statistics.cache import write_character
from planner.domain.trace_statistics.figures import QUANTILE_LEVELS, UNLABELLED, Character
from planner.domain.trace_statistics.statistics import MAX_LISTED_DAYS, characterise
from planner.domain.trace_statistics.volumes import MAX_LISTED_LABELS
from planner.inputs.ingest import IngestOptions, ingest_file

DAY = 86_400
KINDS = ("model", "region", "tier")


@pytest.fixture(scope="module")
def table() -> pl.DataFrame:
    """Requests of 3 kinds of labels, many of each, some requests without one."""
    rng = np.random.default_rng(5)
    rows = 20_000
    share = 1.0 / np.arange(1, 401)
    labels = {
        kind: [
            None if pick == 0 else f"{kind}-{pick}"
            for pick in rng.choice(400, rows, p=share / share.sum()).tolist()
        ]
        for kind in KINDS
    }
    return pl.DataFrame(
        {
            "arrival": np.sort(rng.uniform(0, 2 * DAY, rows)),
            "input_tokens": rng.integers(1, 5000, rows),
            "output_tokens": rng.integers(1, 500, rows),
            **labels,
        }
    )


@pytest.fixture(scope="module")
def character(table: pl.DataFrame, tmp_path_factory: pytest.TempPathFactory) -> Character:
    folder = tmp_path_factory.mktemp("many")
    table.write_parquet(folder / "t.parquet")
    ingest_file(folder / "t.parquet", folder / "store", IngestOptions())
    return characterise(folder / "store").character


def grouped(table: pl.DataFrame, kind: str) -> dict[str, pl.DataFrame]:
    return {
        str(label): rows
        for (label,), rows in table.with_columns(pl.col(kind).fill_null(UNLABELLED))
        .partition_by(kind, as_dict=True)
        .items()
    }


@pytest.mark.parametrize("kind", KINDS)
def test_amounts_are_the_sums_over_each_label(
    character: Character, table: pl.DataFrame, kind: str
) -> None:
    groups = grouped(table, kind)
    listed = [volume for volume in character.volumes if volume.by == kind]
    assert len(groups) > MAX_LISTED_LABELS == len(listed)
    for volume in listed:
        rows = groups[volume.label]
        assert volume.requests == rows.height
        assert volume.input_tokens == rows["input_tokens"].sum()
        assert volume.output_tokens == rows["output_tokens"].sum()
        assert volume.share == pytest.approx(rows.height / table.height)
        assert volume.mean == pytest.approx(
            rows.height / (character.bin_s * bins(table, character))
        )
    sizes = sorted((rows.height for rows in groups.values()), reverse=True)
    assert [volume.requests for volume in listed] == sizes[:MAX_LISTED_LABELS]


def bins(table: pl.DataFrame, character: Character) -> int:
    return int(table["arrival"].max() // character.bin_s) + 1  # type: ignore[operator]


@pytest.mark.parametrize("kind", KINDS)
def test_lengths_are_those_of_the_labels_own_requests(
    character: Character, table: pl.DataFrame, kind: str
) -> None:
    groups = grouped(table, kind)
    for field in ("input_tokens", "output_tokens"):
        listed = [part for part in character.lengths if (part.field, part.by) == (field, kind)]
        assert len(listed) == MAX_LISTED_LABELS
        assert [part.requests for part in listed] == sorted(
            (part.requests for part in listed), reverse=True
        )
        for part in listed:
            tokens = groups[part.label][field].to_numpy()
            assert part.requests == tokens.size
            assert part.mean == pytest.approx(tokens.mean())
            assert part.most == tokens.max()
            # The least length that the share of requests does not exceed; 0.28 x 25 is 7.
            place = (
                np.ceil(np.round(np.array(QUANTILE_LEVELS) * tokens.size, 6)).clip(1).astype(int)
                - 1
            )
            assert part.quantiles == tuple(np.sort(tokens)[place].tolist())


def test_the_whole_and_its_imbalance_count_what_is_not_listed(
    character: Character, table: pl.DataFrame
) -> None:
    assert character.total.requests == table.height
    assert character.series == table.select(KINDS).n_unique()
    for unequal, kind in zip(character.imbalance, KINDS, strict=True):
        shares = np.array([rows.height for rows in grouped(table, kind).values()]) / table.height
        assert (unequal.by, unequal.labels) == (kind, shares.size)
        assert unequal.effective == pytest.approx(1 / (shares**2).sum())
        assert (unequal.most_share, unequal.least_share) == (shares.max(), shares.min())
        assert any(f"{shares.size:,} {kind}s" in note for note in character.notes)


def test_a_few_requests_in_54_years_have_few_days_listed(tmp_path: Path) -> None:
    times = ["1970-01-02 00:00:00", "1999-05-10 12:00:00", "2024-05-15 00:00:01"]
    rows = "".join(f"{time},100,10\n" for time in times)
    (tmp_path / "t.csv").write_text("arrival,input_tokens,output_tokens\n" + rows)
    ingest_file(tmp_path / "t.csv", tmp_path / "store", IngestOptions())
    figures = write_character(tmp_path / "store")
    days = figures["days"]["days"]
    assert len(days) == MAX_LISTED_DAYS
    assert sum(day["requests"] for day in days) == 3
    assert [day["start_s"] for day in days] == sorted(day["start_s"] for day in days)
    assert figures["days"]["ranked"] > 19_000
    assert any(f"{MAX_LISTED_DAYS:,} busiest" in words for words in figures["days"]["words"])


def test_the_rank_of_a_day_counts_the_busier_ones(tmp_path: Path) -> None:
    amounts = np.random.default_rng(8).integers(1, 12, 60)
    day = np.datetime64("2024-05-01")
    rows = "".join(f"{day + i},{amount}\n" for i, amount in enumerate(amounts))
    (tmp_path / "t.csv").write_text("time,requests\n" + rows)
    ingest_file(tmp_path / "t.csv", tmp_path / "store", IngestOptions(format="demand"))
    days = characterise(tmp_path / "store").character.days.days
    assert [one.rank for one in days] == [1 + int((amounts > own).sum()) for own in amounts]


def test_bins_are_joined_where_all_series_have_too_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The figures are those of a file with the wider bins."""
    rng = np.random.default_rng(2)
    cells = [
        (DAY * 19_858 + 300 * place, f"m{name}", int(rng.integers(0, 50)))
        for name in range(20)
        for place in range(int(rng.integers(0, 9)) * 12, 576 - int(rng.integers(0, 9)) * 12)
    ]
    table = pl.DataFrame(cells, schema=["time", "model", "requests"], orient="row")
    wide = table.group_by(pl.col("time") // 3600 * 3600, "model", maintain_order=True).sum()
    stored = {}
    for name, rows in (("own", table), ("wide", wide)):
        rows.write_csv(tmp_path / f"{name}.csv")
        options = IngestOptions(format="demand", name="t.csv")
        ingest_file(tmp_path / f"{name}.csv", tmp_path / name, options)
        stored[name] = characterise(tmp_path / name).character
    monkeypatch.setattr("planner.domain.trace_statistics.grid.MAX_DEMAND_CELLS", 1000)
    joined = characterise(tmp_path / "own").character
    assert (stored["own"].bin_s, joined.bin_s, stored["wide"].bin_s) == (300, 3600, 3600)
    assert (joined.total, joined.volumes) == (stored["wide"].total, stored["wide"].volumes)
    assert joined.days == stored["wide"].days
    assert joined.total.requests == stored["own"].total.requests
    assert any("3600 s" in note for note in joined.notes)
