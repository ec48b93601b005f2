import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st

from tfdist.compression import COMPRESSORS

ROWS = np.random.default_rng(0).normal(0, 1, (3, 64)).astype(np.float32)
SPECIAL = np.array([[np.nan, np.inf, -np.inf, 0, 1, -1, 2, -2] * 2], np.float32)


def there_and_back(name, rows):
    compressor = COMPRESSORS[name]()
    wire = compressor.encode(tf.constant(rows))
    assert wire.dtype == tf.uint8
    return compressor.decode(wire, rows.shape[1]).numpy(), wire.numpy()


def test_none_is_the_identity():
    rows, wire = there_and_back("none", ROWS)
    assert rows.tobytes() == ROWS.tobytes() == wire.tobytes()


@pytest.mark.parametrize(("name", "dtype"), [("fp16", tf.float16), ("bf16", tf.bfloat16)])
def test_casts(name, dtype):
    rows, wire = there_and_back(name, ROWS)
    assert (rows == tf.cast(tf.cast(ROWS, dtype), tf.float32).numpy()).all()
    assert wire.nbytes == ROWS.nbytes / 2


def test_int8_is_within_half_a_step():
    rows, wire = there_and_back("int8", ROWS)
    steps = np.abs(ROWS).max(1, keepdims=True) / 126
    assert (np.abs(rows - ROWS) <= steps / 2 * (1 + 1e-5)).all()
    assert wire.nbytes == ROWS.nbytes / 4 + 4 * len(ROWS)


def test_each_row_has_its_own_scale():
    rows, _ = there_and_back("int8", np.array([[1e-6] * 16, [1e6] * 16], np.float32))
    np.testing.assert_allclose(rows, [[1e-6] * 16, [1e6] * 16], rtol=1e-6)


@pytest.mark.parametrize("name", COMPRESSORS)
def test_zeros_and_what_is_not_a_number(name):
    assert (there_and_back(name, np.zeros((2, 16), np.float32))[0] == 0).all()
    np.testing.assert_array_equal(there_and_back(name, SPECIAL)[0], SPECIAL)


@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=16, max_size=16))
@settings(max_examples=50, deadline=None)
def test_int8_takes_any_number(numbers):
    row = np.array([numbers], np.float32)
    result = there_and_back("int8", row)[0]
    assert np.isfinite(result).all()
    assert np.abs(result - row).max() <= np.abs(row).max() / 126 / 2 * (1 + 1e-3) + 1e-38
