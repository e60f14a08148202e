"""Kernel tables: exact where measured, power laws between, honest beyond."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulation.performance.graph import operator_graph
from simulation.performance.kernel_tables import KernelRows, fastest, kernels, surface
from simulation.performance.monotone import monotone, monotone_curve
from simulation.performance.specs import Arrangement, ModelShape
from simulation.performance.work import iteration

MODEL = ModelShape("small", 4, 1024, 4096, 16, 4, 64, 4096, 65536)


def grid(**axes: list[float]) -> dict[str, np.ndarray]:
    """All combinations of the values of each column."""
    meshed = np.meshgrid(*axes.values(), indexing="ij")
    return {name: mesh.ravel().astype(float) for name, mesh in zip(axes, meshed, strict=True)}


@given(st.lists(st.floats(1e-6, 1.0), min_size=1, max_size=30))
def test_lines_rise_and_stay_within_what_was_measured(seconds: list[float]) -> None:
    values = np.array(seconds)
    fitted = monotone_curve(np.arange(1.0, values.size + 1), values)
    read = fitted.at(np.linspace(0.5, values.size, 200))
    assert (np.diff(read) >= -1e-12).all()
    assert read.min() >= values.min() * (1 - 1e-9)
    assert read.max() <= values.max() * (1 + 1e-9)


def test_what_rises_already_is_left_alone() -> None:
    table = np.array([[1.0, 2.0], [1.5, 4.0]])
    np.testing.assert_allclose(monotone(table), table)


def test_a_line_says_where_it_ends_and_goes_on_in_proportion() -> None:
    known = monotone_curve(np.array([10.0, 1000.0]), np.array([1.0, 10.0]))
    np.testing.assert_allclose(
        known.at(np.array([1.0, 10.0, 100.0, 1000.0, 4000.0])), [1, 1, np.sqrt(10), 10, 40]
    )
    np.testing.assert_array_equal(
        known.inside(np.array([1.0, 10.0, 1000.0, 1001.0])), [False, True, True, False]
    )


def test_repeated_sizes_count_by_their_median() -> None:
    known = monotone_curve(np.array([4.0, 4.0, 4.0]), np.array([1.0, 9.0, 2.0]))
    assert known.at(np.array([4.0])) == 2.0


def test_a_surface_fills_what_was_not_measured_and_says_so() -> None:
    points = [(1, 10, 1.0), (1, 100, 2.0), (2, 10, 1.5)]
    x, y, seconds = (np.array(column, float) for column in zip(*points, strict=True))
    table = surface(x, y, seconds)
    read, inside = table.at(np.array([1.0, 2.0, 2.0, 2.0]), np.array([100.0, 10.0, 100.0, 50.0]))
    np.testing.assert_allclose(read[:3], [2.0, 1.5, 4.0])  # twice the batch, twice the time
    np.testing.assert_array_equal(inside, [True, True, False, False])


def test_a_hole_between_measurements_is_read_from_them() -> None:
    points = [(1, 1, 1.0), (1, 10, 2.0), (1, 100, 4.0), (2, 1, 2.0), (2, 100, 8.0)]
    x, y, seconds = (np.array(column, float) for column in zip(*points, strict=True))
    read, inside = surface(x, y, seconds).at(np.array([2.0]), np.array([10.0]))
    assert read[0] == pytest.approx(4.0)
    assert inside[0]


def test_products_of_a_power_law_are_read_exactly_between_shapes() -> None:
    columns = grid(m=[1, 16, 256], n=[256, 4096], k=[512, 8192])
    seconds = 1e-9 * columns["m"] ** 0.5 * columns["n"] * columns["k"] ** 0.8
    table = kernels("GPU", "test", [KernelRows("gemm", "bf16", columns, seconds)]).gemm["bf16"]
    read = table.at(np.array([40.0]), 1024, 1000)
    assert read is not None
    assert read[0][0] == pytest.approx(1e-9 * 40**0.5 * 1024 * 1000**0.8)
    assert read[1].all()
    beyond = table.at(np.array([16.0]), 32768, 8192)
    assert beyond is not None
    assert not beyond[1].any()
    at_edge = table.at(np.array([16.0]), 4096, 8192)
    assert at_edge is not None
    assert beyond[0][0] == pytest.approx(8 * at_edge[0][0])


def attention(op: str, **axes: list[float]) -> KernelRows:
    """Seconds proportional to the query-key pairs."""
    columns = grid(heads=[16], kv_heads=[4], head_dim=[64], **axes)
    if op == "attention_decode":
        return KernelRows(op, "bf16", columns, 1e-9 * columns["batch"] * columns["context"])
    columns["context"] = np.zeros(columns["batch"].size)
    return KernelRows(op, "bf16", columns, 1e-9 * columns["batch"] * columns["isl"] ** 2 / 2)


def test_prompts_of_one_chunk_several_chunks_and_after_others() -> None:
    rows = attention("attention_prefill", batch=[1, 4, 16], isl=[16, 256, 4096])
    table = kernels("GPU", "test", [rows])
    prefill = operator_graph(MODEL, Arrangement())["attention_prefill"]
    for tokens, pairs in (
        (256.0, 256.0 * 128),  # one prompt
        (1024.0, 1024.0 * 128),  # four of them
        (256.0, 256.0 * (2048 + 128)),  # a chunk after 2,048 tokens
    ):
        read = table.read(prefill, iteration(prefill_tokens=tokens, prefill_pairs=pairs))
        assert read is not None
        assert float(read[0]) == pytest.approx(1e-9 * pairs)
        assert bool(read[1])


def test_heads_between_measured_ones() -> None:
    rows = [
        KernelRows(
            "attention_decode", "bf16",
            {**attention("attention_decode", batch=[1, 8], context=[64, 4096]).columns,
             "heads": np.full(4, heads)},
            np.full(4, seconds),
        )
        for heads, seconds in ((8.0, 1e-6), (32.0, 4e-6))
    ]  # fmt: skip
    decode = operator_graph(MODEL, Arrangement())["attention_decode"]
    read = kernels("GPU", "test", rows).read(decode, iteration(4.0, 4 * 100.0))
    assert read is not None
    assert float(read[0]) == pytest.approx(2e-6)


def test_collectives_take_the_faster_implementation_at_each_size() -> None:
    sizes = {"gpus": np.full(2, 4.0), "message_bytes": np.array([1e3, 1e8])}
    rows = [
        KernelRows("all_reduce", "bf16", sizes, np.array([1e-5, 1e-3])),
        KernelRows("all_reduce", "bf16", sizes, np.array([2e-5, 5e-4])),
    ]
    curves = kernels("GPU", "test", rows).collectives
    read = fastest(curves["all_reduce", 4], np.array([1e3, 1e8]))
    assert read is not None
    np.testing.assert_allclose(read[0], [1e-5, 5e-4])
    assert ("all_reduce", 8) not in curves and fastest((), np.array([1e3])) is None


def test_nothing_to_do_takes_no_time() -> None:
    rows = attention("attention_decode", batch=[1, 4], context=[16, 256])
    decode = operator_graph(MODEL, Arrangement())["attention_decode"]
    read = kernels("GPU", "test", [rows]).read(decode, iteration(prefill_tokens=5.0))
    assert read is not None
    assert float(read[0]) == 0
    assert bool(read[1])
