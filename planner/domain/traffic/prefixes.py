"""Read the blocks that prompts of a trace share, from the column store into a study's requests."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from planner.inputs.ingest.store import RequestColumns
from simulation.trace import PrefixBlocks, Trace

# Tokens per block in Mooncake's traces, the only published ones with ids.
USUAL_TOKENS = 512


def blocks_of(columns: RequestColumns) -> PrefixBlocks | None:
    """Return the blocks that a file's ``hash_ids`` name, or None without ids.

    Files do not state the tokens per block. With the right size, every prompt has one block per id.
    If Mooncake's 512 fits, use it, else the largest size that fits. Return None if no size fits.
    """
    ids, start, isl = columns.hash_ids, columns.hash_offsets, columns.input_tokens
    if ids is None or start is None or isl is None or not len(ids):
        return None
    count = np.diff(start)
    named = count > 0
    several = count > 1
    # n ids need (n - 1) * size < isl <= n * size, which bounds the size from both sides.
    min_size = int(np.ceil(isl[named] / count[named]).max())
    max_size = (
        int(((isl[several] - 1) // (count[several] - 1)).min()) if several.any() else min_size
    )
    if min_size > max_size:
        return None
    size = USUAL_TOKENS if min_size <= USUAL_TOKENS <= max_size else max_size
    _, renumbered = np.unique(ids, return_inverse=True)
    return PrefixBlocks(start, renumbered.astype(np.int32), size)


def joined(parts: Sequence[Trace]) -> PrefixBlocks | None:
    """Return the blocks of several traces, one after the other.

    Each trace's ids are renumbered, so that no two traces share a block. Return None if no trace
    has blocks, or if their sizes differ.
    """
    parts_with_blocks = [part.blocks for part in parts if part.blocks is not None]
    if not parts_with_blocks or len({blocks.block_tokens for blocks in parts_with_blocks}) > 1:
        return None
    counts, ids, free = [], [], 0
    for part in parts:
        if part.blocks is None:
            counts.append(np.zeros(len(part), np.int64))
            continue
        counts.append(np.diff(part.blocks.start))
        ids.append(part.blocks.ids + free)
        free = int(ids[-1].max(initial=free - 1)) + 1
    start = np.concatenate([[0], np.cumsum(np.concatenate(counts))])
    return PrefixBlocks(start, np.concatenate(ids), parts_with_blocks[0].block_tokens)
