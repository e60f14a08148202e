"""The blocks of prompts, from a file to the requests of a study."""

import json
from dataclasses import replace

import numpy as np

from planner.domain.traffic.prefixes import blocks_from_hash_ids
from planner.domain.traffic.sources import measured_source
from planner.domain.traffic.traffic import MEASURED, build_traffic, merge
from planner.inputs.ingest.store import COLUMNS, read_requests
from planner.inputs.scenario.schema import Source
from simulation.trace import Trace, joined_prefixes
from tests.planner.domain.builders import ingested, request_file, source, traffic_settings

ROWS = [
    {"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [7, 9]},
    {"timestamp": 1500, "input_length": 10, "output_length": 7, "hash_ids": [7]},
    {"timestamp": 2000, "input_length": 1100, "output_length": 7, "hash_ids": [7, 9, 40]},
]


def stored(tmp_path, rows=ROWS):
    file = tmp_path / "mooncake.jsonl"
    file.write_text("\n".join(json.dumps(row) for row in rows))
    return ingested(file, "requests", tmp_path / "store")


def columns(tmp_path, rows=ROWS):
    return read_requests(stored(tmp_path, rows).store, (*COLUMNS, "hash_ids"))


def shell():
    codes, lengths = np.zeros(0, np.int16), np.zeros(0, np.int32)
    return Trace(np.zeros(0), lengths, lengths, codes, codes, codes, ("m",), ("r",), ("t",), 0.0)


def requests(tmp_path, **source):
    traffic_source = Source(
        **{"trace": "x", "model": "m", "regions": {"r": 1}, "tiers": {"t": 1}} | source
    )
    rng = np.random.default_rng(0)
    return measured_source(shell(), traffic_source, columns(tmp_path), "here", rng)


def test_ids_follow_their_requests_into_the_trace_and_its_windows(tmp_path):
    trace = requests(tmp_path)
    assert trace.blocks.ids.tolist() == [0, 1, 0, 0, 1, 2]
    assert trace.blocks.start.tolist() == [0, 2, 3, 6]
    assert trace.blocks.block_tokens == 512
    start = trace.start_s
    assert trace.window(start + 1.0, start + 1.9).blocks.ids.tolist() == [0]


def test_scaled_requests_share_nothing_known(tmp_path):
    assert requests(tmp_path, scale=2.0).blocks is None
    assert requests(tmp_path, scale=0.5).blocks is None


def test_a_size_that_fits_is_found_or_none(tmp_path):
    small = [replace_ids(row, 16) for row in ROWS]
    assert blocks_from_hash_ids(columns(tmp_path, small)).block_tokens == 16
    odd = [*ROWS, {"timestamp": 3000, "input_length": 10, "output_length": 1, "hash_ids": [1, 2]}]
    (tmp_path / "odd").mkdir()
    assert blocks_from_hash_ids(columns(tmp_path / "odd", odd)) is None


def replace_ids(row, size):
    return row | {"hash_ids": list(range(-(-row["input_length"] // size)))}


def test_merged_traces_keep_their_ids_apart(tmp_path):
    with_blocks = requests(tmp_path)
    plain = replace(with_blocks, blocks=None)
    both = merge([with_blocks, plain, with_blocks], replay=MEASURED)
    assert len(both) == 9
    lists = [ids.tolist() for ids in np.split(both.blocks.ids, both.blocks.start[1:-1])]
    assert lists == [[0, 1], [], [3, 4], [0], [], [3], [0, 1, 2], [], [3, 4, 5]]
    assert joined_prefixes([plain, plain]) is None


def test_caches_that_find_nothing_say_so(tmp_path):
    on = {"serving": [{"prefix_caching": True}], "traffic__sources": [source()]}
    sentence = "Prefix caches are on but unused"
    known = stored(tmp_path, [*ROWS, ROWS[1] | {"timestamp": 300_000}])
    bare = request_file(tmp_path, [0.0, 300.0])
    for trace, changes, expected in ((known, on, False), (bare, on, True), (bare, {}, False)):
        notes = build_traffic(traffic_settings(**changes), {"t": trace}).notes
        assert any(sentence in note for note in notes) == expected
