"""Compiled attention against its formula, for heads of all widths that registers divide."""

import numpy as np
import pytest

from specray.draft.kernels import Array, attention, branch_attention

KV_HEADS = 2


def states_of(num_tokens: int, room: int, dim: int, rng: np.random.Generator) -> Array:
    """One layer's keys and values; what is behind the tokens must not be read."""
    states = np.full((1, 2 * KV_HEADS, room, dim), np.nan, np.float32)
    states[:, :, :num_tokens] = rng.standard_normal((1, 2 * KV_HEADS, num_tokens, dim))
    return states


def attended(queries: Array, keys: Array, values: Array) -> Array:
    """[group, dim] over [tokens, dim]."""
    scores = queries.astype(np.float64) @ keys.T / keys.shape[1] ** 0.5
    weights = np.exp(scores - scores.max(1, keepdims=True))
    return weights / weights.sum(1, keepdims=True) @ values


def expected(token: Array, keys_and_values: Array, group: int) -> Array:
    """A token's [heads * dim] over [2 * kv_heads, tokens, dim], its own included."""
    keys, values = keys_and_values[:KV_HEADS], keys_and_values[KV_HEADS:]
    queries = token[: group * KV_HEADS].reshape(KV_HEADS, group, -1)
    return np.concatenate(
        [attended(queries[h], keys[h], values[h]).ravel() for h in range(KV_HEADS)]
    )


@pytest.mark.parametrize("num_cached", [0, 3, 16, 37])
@pytest.mark.parametrize(("dim", "group"), [(2, 1), (6, 3), (8, 2), (12, 3), (64, 3), (80, 5)])
def test_attention(dim: int, group: int, num_cached: int) -> None:
    rng = np.random.default_rng(0)
    num_new = 3
    states = states_of(num_cached, num_cached + num_new + 2, dim, rng)
    qkv = rng.standard_normal((1 + num_new, (group + 2) * KV_HEADS, dim), np.float32)
    out = np.full((num_new, group * KV_HEADS * dim), np.nan, np.float32)
    length = num_cached + num_new
    attention(dim, group)(qkv, 1, states, 0, length, out)
    np.testing.assert_array_equal(
        states[0, :, num_cached:length], qkv[1:, group * KV_HEADS :].transpose(1, 0, 2)
    )
    for new in range(num_new):
        seen = states[0, :, : num_cached + new + 1]
        np.testing.assert_allclose(
            out[new], expected(qkv[1 + new], seen, group), rtol=1e-3, atol=1e-5
        )


@pytest.mark.parametrize("num_own", [1, 2, 9])
@pytest.mark.parametrize("num_shared", [1, 4, 31])
@pytest.mark.parametrize(("dim", "group"), [(6, 3), (64, 3), (80, 5)])
def test_attention_of_a_branch(dim: int, group: int, num_shared: int, num_own: int) -> None:
    rng = np.random.default_rng(1)
    shared = states_of(num_shared, num_shared + 2, dim, rng)
    tail = states_of(num_own - 1, num_own + 2, dim, rng)
    qkv = rng.standard_normal((3, (group + 2) * KV_HEADS, dim), np.float32)
    out = np.full(group * KV_HEADS * dim, np.nan, np.float32)
    length = num_shared + num_own
    branch_attention(dim, group)(qkv, 2, shared, tail, num_shared, 0, length, out)
    seen = np.concatenate((shared[0, :, :num_shared], tail[0, :, :num_own]), axis=1)
    np.testing.assert_allclose(out, expected(qkv[2], seen, group), rtol=1e-3, atol=1e-5)
