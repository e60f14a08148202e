"""Width and state of the mixers that stand in for attention in hybrid models, from their config.

The recurrent state is in 32 bits, as the configs ask for (``mamba_ssm_cache_dtype: float32`` of
Nemotron, ``mamba_ssm_dtype: float32`` of Qwen3.5) and as we assume of others; that of the
convolution in 16.
"""

from __future__ import annotations

STATE_BYTES, CONV_BYTES = 4, 2


def delta_net(
    *, key_heads: int, key_dim: int, value_heads: int, value_dim: int, conv: int
) -> dict[str, int]:
    """Gated DeltaNet as in Qwen3-Next and Qwen3.5 (transformers, modeling_qwen3_next.py), as
    fields of ModelShape."""
    keys, values = key_heads * key_dim, value_heads * value_dim
    state = STATE_BYTES * value_heads * key_dim * value_dim
    return _fields(keys, values, state, conv)


def mamba(*, heads: int, head_dim: int, state: int, groups: int, conv: int) -> dict[str, int]:
    """Mamba-2 as in Nemotron-H (transformers, modeling_nemotron_h.py), as fields of ModelShape."""
    inner = heads * head_dim
    return _fields(groups * state, inner, STATE_BYTES * inner * state, conv)


def _fields(keys: int, values: int, state: int, conv: int) -> dict[str, int]:
    conv_bytes = CONV_BYTES * (conv - 1) * (2 * keys + values)
    return {
        "linear_key_width": keys,
        "linear_value_width": values,
        "linear_state_bytes": state + conv_bytes,
    }
