"""Read the prefixes that prompts share, from the column store into a study's requests.

A prompt is divided into blocks of equal length. Prompts with the same first blocks share a prefix.
"""

import numpy as np

from planner.domain.traffic.lengths import cached_part
from planner.inputs.ingest.store import RequestColumns
from simulation.arrays import Int32Array, IntArray
from simulation.trace import CachedTokens, PrefixBlocks, Trace

# Tokens per block in Mooncake's traces, the only published ones with ids.
USUAL_TOKENS = 512
# Tokens per block of prompts that grow in a session. vLLM's blocks have 16; more keep the ids few.
SESSION_TOKENS = 64


def blocks_from_hash_ids(columns: RequestColumns) -> PrefixBlocks | None:
    """Return the prompt blocks that a file's ``hash_ids`` name, or None without ids.

    Files do not state the tokens per block. A size fits if every prompt then has one block per id.
    If Mooncake's 512 fits, use it, else the largest size that fits. Return None if no size fits.
    """
    ids, start, isl = columns.hash_ids, columns.hash_offsets, columns.input_tokens
    if ids is None or start is None or isl is None or not len(ids):
        return None
    ids_of_prompt = np.diff(start)
    # n ids need (n - 1) * size < isl <= n * size, which bounds the size from both sides.
    has_ids, has_several = ids_of_prompt > 0, ids_of_prompt > 1
    min_size = int(np.ceil(isl[has_ids] / ids_of_prompt[has_ids]).max())
    max_size = min_size
    if has_several.any():
        largest = (isl[has_several] - 1) // (ids_of_prompt[has_several] - 1)
        max_size = int(largest.min())
    if min_size > max_size:
        return None
    size = USUAL_TOKENS if min_size <= USUAL_TOKENS <= max_size else max_size
    _, renumbered = np.unique(ids, return_inverse=True)
    return PrefixBlocks(start, renumbered.astype(np.int32), size)


def cached_tokens_of(
    columns: RequestColumns, stated: float | None, isl: Int32Array
) -> CachedTokens | None:
    """Return the cached input tokens of each request of a file; None if unknown or all 0.

    ``stated`` is the scenario's share of the input tokens (``isl``). It replaces the file's counts.
    """
    if stated is not None:
        return cached_part(isl, stated) if stated > 0 else None
    counted = columns.cached_tokens
    return None if counted is None or not counted.any() else CachedTokens(counted)


def blocks_of_sessions(trace: Trace) -> PrefixBlocks | None:
    """Return prompt blocks on the assumption that the prompts of a session repeat their context.

    A prompt at least as long as the one before it in the session begins with all of that one. A
    shorter prompt begins a new context, which shares nothing. Requests without a session have no
    blocks. Return None if no request has a session.
    """
    if trace.session is None:
        return None
    # Rows of the trace with a session, session by session.
    rows = np.argsort(trace.session, kind="stable")
    rows = rows[trace.session[rows] >= 0]
    if not len(rows):
        return None
    isl = trace.input_tokens[rows].astype(np.int64)
    blocks = -(-isl // SESSION_TOKENS)  # of each prompt, rounded up
    # In the order of the trace, where requests without a session have no blocks.
    counts = np.zeros(len(trace), np.int64)
    first_ids = np.zeros(len(trace), np.int64)
    counts[rows] = blocks
    first_ids[rows] = _first_ids(trace.session[rows], isl, blocks)
    start = np.concatenate([[0], np.cumsum(counts)])
    # Ids of a prompt count up from the first one of its context.
    ids = np.repeat(first_ids - start[:-1], counts) + np.arange(start[-1])
    return PrefixBlocks(start, ids.astype(np.int32), SESSION_TOKENS)


def _first_ids(session: Int32Array, isl: IntArray, blocks: IntArray) -> IntArray:
    """Return the first id of each prompt's context, with the prompts session by session.

    ``isl`` are the prompts' tokens, and ``blocks`` their numbers of blocks.
    """
    begins_context = np.ones(len(session), np.bool_)
    begins_context[1:] = (session[1:] != session[:-1]) | (isl[1:] < isl[:-1])
    context = np.cumsum(begins_context) - 1  # number of each prompt's context
    # The last prompt of a context has the most blocks. The others have the first of these.
    last_prompt = np.append(np.flatnonzero(begins_context)[1:], len(session)) - 1  # of each context
    most_blocks = blocks[last_prompt]
    first_id: IntArray = np.cumsum(most_blocks) - most_blocks  # of each context
    return np.asarray(first_id[context])
