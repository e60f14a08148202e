"""Compile the seconds of operators to the curve that the engine reads."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np

from simulation.arrays import BoolArray, FloatArray
from simulation.performance.adjusted_profile import AdjustedProfile
from simulation.performance.curves import ANY, Curve, Part, grid
from simulation.performance.graph import OperatorGraph
from simulation.performance.work import Iteration, Operator, iteration

# Mask of calls that were measured; None: the operator is modelled, which does not limit the range.
WasMeasured = Callable[[Operator, Iteration], BoolArray | None]
Timing = Callable[[Operator, Iteration], FloatArray]  # seconds of one call for each iteration

# Sizes of a GPU's batch at which the curve has knots. The tokens follow the tiles of tensor cores
# at small sizes, then quarters of an octave (a factor of two).
_OCTAVES = 2.0 ** np.arange(0, 17.0)
TOKENS = np.unique(
    np.concatenate(
        [_OCTAVES, [24.0, 48, 80, 96, 112, 160, 192, 224], np.round(256 * 2 ** (np.arange(33) / 4))]
    )
)
SEQUENCES = np.unique(
    np.concatenate([2.0 ** np.arange(0, 13.0), [12, 24, 48, 96, 192, 384, 768, 1536]])
)
CHUNKS = np.unique(
    np.concatenate([_OCTAVES, [48.0, 96, 192, 384, 768, 1536, 3072, 6144, 12288, 24576]])
)
DECODE_AXES, PROMPT_AXES = ("decodes", "logits"), ("prefill", "logits")  # of operators


def keys_knots(longest: int) -> FloatArray:
    """Return knots for the mean number of keys of a token, up to ``longest``.

    They are powers of two, and half-way points between them from 512 on.
    """
    octaves = 2.0 ** np.arange(0, np.ceil(np.log2(max(longest, 2))) + 1)
    return np.unique(np.concatenate([octaves, 1.5 * octaves[octaves >= 512]]))


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphProfile(AdjustedProfile):
    """A profile whose iteration time is the sum over a graph's operators; see ``Profile``."""

    graph: OperatorGraph = field(repr=False)
    timing: Timing = field(repr=False)


def compile_graph(
    graph: OperatorGraph,
    timing: Timing,
    overhead_s: float = 0.0,
    is_measured: WasMeasured | None = None,
    mixed: Timing | None = None,
) -> Curve:
    """Return the graph's iteration times as a curve: parts for all tokens, decodes and prompts.

    ``timing`` gives the seconds of an operator. ``mixed`` gives those of the operators of decodes
    in iterations that also compute prompts, for the part ``beside``; None: the same. ``overhead_s``
    is the time of every iteration outside its operators. ``is_measured`` tells which calls of an
    operator were measured, for the measured range of the curve; None: all.
    """
    groups = graph.arrangement.attention_dp * graph.arrangement.pp  # divide sequences and tokens
    tokens = np.unique(np.concatenate([TOKENS, TOKENS * groups]))
    keys = keys_knots(graph.shape.max_context)
    sequences = np.unique(np.concatenate([[1.0], SEQUENCES * groups]))
    prompt_tokens = np.unique(np.concatenate([[1.0], CHUNKS * groups]))
    # Iterations at all pairs of knots, ``[knots, keys]``
    all_tokens = iteration(decodes=tokens[:, None])
    decodes = iteration(decodes=sequences[:, None], decode_context=sequences[:, None] * keys)
    chunks = iteration(
        prefill_tokens=prompt_tokens[:, None], prefill_pairs=prompt_tokens[:, None] * keys
    )
    # The output head is part of decodes and of prompts. In a mixed iteration it reads its weights
    # once, but both parts count it.
    on_tokens = [operator for operator in graph.operators if operator.axis == "tokens"]
    on_decodes = [operator for operator in graph.operators if operator.axis in DECODE_AXES]
    on_prompts = [operator for operator in graph.operators if operator.axis in PROMPT_AXES]
    output_heads = [operator for operator in graph.operators if operator.axis == "logits"]
    seconds = total_s(on_tokens, all_tokens, timing) + overhead_s
    dense = _part(tokens, np.zeros(1), seconds, _all_measured(on_tokens, all_tokens, is_measured))
    decodes_measured = _all_measured(on_decodes, decodes, is_measured)
    decode = _part(sequences, keys, total_s(on_decodes, decodes, timing), decodes_measured)
    beside = None
    if mixed:
        beside = _part(sequences, keys, total_s(on_decodes, decodes, mixed), decodes_measured)
    chunks_measured = _all_measured(on_prompts, chunks, is_measured)
    prefill = _part(prompt_tokens, keys, total_s(on_prompts, chunks, timing), chunks_measured)
    overlap_s = total_s(output_heads, iteration(prefill_tokens=1.0), timing)
    return grid(
        dense=dense, decode=decode, beside=beside, prefill=prefill, overlap_s=float(overlap_s)
    )


def _all_measured(
    operators: Iterable[Operator], iteration: Iteration, is_measured: WasMeasured | None
) -> BoolArray | None:
    """Return the mask of iterations in which all ``operators`` were measured; None: no limit."""
    if is_measured is None:
        return None
    all_measured = np.ones(iteration.decodes.shape, np.bool_)
    for operator in operators:
        measured = is_measured(operator, iteration)
        if measured is not None:
            all_measured &= measured
    return all_measured


def _part(x: FloatArray, y: FloatArray, seconds: FloatArray, measured: BoolArray | None) -> Part:
    """Return a part of the curve, with the range of y in which ``measured [x, y]`` is True."""
    if measured is None:
        return Part(x, y, seconds)
    # Where nothing was measured, the lower limit exceeds the upper one, and no y is inside.
    lowest, highest = (y, y) if y.size > 1 else (np.full(1, -ANY), np.full(1, ANY))
    low, high = np.where(measured, lowest, ANY), np.where(measured, highest, -ANY)
    return Part(x, y, seconds, low.min(axis=1), high.max(axis=1))


def total_s(operators: Iterable[Operator], iteration: Iteration, timing: Timing) -> FloatArray:
    """Return the seconds of all layers of ``operators``, whose calls take ``timing``."""
    total = np.zeros(iteration.decodes.shape)
    for operator in operators:
        total = total + operator.count * timing(operator, iteration)
    return total
