"""Compute width and state of the mixers (Mamba, DeltaNet) that replace attention in hybrid models.

The recurrent state has 32 bits. Configs of Nemotron (``mamba_ssm_cache_dtype: float32``) and
Qwen3.5 (``mamba_ssm_dtype: float32``) require that, and we assume it for others. The state of the
convolution has 16 bits.
"""

STATE_BYTES, CONV_BYTES = 4, 2


def delta_net(
    *, key_heads: int, key_dim: int, value_heads: int, value_dim: int, conv: int
) -> dict[str, int]:
    """Return the fields of ModelShape for Gated DeltaNet (transformers, modeling_qwen3_next.py)."""
    keys, values = key_heads * key_dim, value_heads * value_dim
    state = STATE_BYTES * value_heads * key_dim * value_dim
    return _state_fields(keys, values, state, conv)


def mamba(*, heads: int, head_dim: int, state: int, groups: int, conv: int) -> dict[str, int]:
    """Return the fields of ModelShape for Mamba-2 (transformers, modeling_nemotron_h.py)."""
    inner = heads * head_dim
    return _state_fields(groups * state, inner, STATE_BYTES * inner * state, conv)


def _state_fields(keys: int, values: int, state: int, conv: int) -> dict[str, int]:
    """Return the fields of ModelShape; ``conv`` tokens are convolved before the mixer."""
    conv_bytes = CONV_BYTES * (conv - 1) * (2 * keys + values)
    return {
        "linear_key_width": keys,
        "linear_value_width": values,
        "linear_state_bytes": state + conv_bytes,
    }
