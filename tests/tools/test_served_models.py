"""Published peaks count as the runs that measured them."""

from itertools import pairwise

import polars as pl
import pytest

from tests.shared_folder import DATA, shared
from tools.catalogue.served_models import PEAKS, REQUESTS, peak_rows


def test_a_run_has_whole_waves_and_keeps_the_published_throughput() -> None:
    table = pl.read_csv(shared(DATA / PEAKS), infer_schema_length=None).iter_rows(named=True)
    for row, peak in zip(table, peak_rows(DATA), strict=True):
        batch, gpus = peak.given["concurrency"], row["gpus"]
        waves = REQUESTS[max(row["isl"], row["osl"])] / batch
        assert waves == pytest.approx(round(waves)) and waves >= 1.0
        assert batch / peak.tbt_s / gpus == pytest.approx(row["max_output_tokens_per_s_per_gpu"])


def test_longer_sequences_never_run_in_larger_batches() -> None:
    for one, two in pairwise(peak_rows(DATA) if shared(DATA / PEAKS) else ()):
        same = [one.given[name] == two.given[name] for name in ("model", "gpu", "precision")]
        lengths = [row.given["isl"] + row.given["osl"] for row in (one, two)]
        batches = [row.given["concurrency"] for row in (one, two)]
        if all(same) and lengths[0] < lengths[1]:
            assert batches[0] >= batches[1]
