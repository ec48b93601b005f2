"""Where a model is cut."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfdist.pipeline.balance import stage_starts
from tfdist.pipeline.cut import cut

L = keras.layers


def uneven():
    """One layer takes far longer than all others together, and has fewer parameters than the last."""
    inputs = keras.Input((64, 64, 4))
    x = L.ReLU()(L.Conv2D(64, 7, padding="same")(L.ReLU()(inputs)))
    x = L.GlobalAveragePooling2D()(x)
    return keras.Model(inputs, L.Dense(400)(L.Dense(200)(x)))


def test_by_time_by_parameters_and_as_told():
    model = uneven()
    assert stage_starts(model, 2, "parameters") == [0, 5]
    assert stage_starts(model, 2, "time") in ([0, 1], [0, 2])
    assert stage_starts(model, 3, [1, 4, 1]) == [0, 1, 5]


def test_a_shape_that_is_not_known_cannot_be_timed():
    model = keras.Sequential([keras.Input((None, 3)), L.Dense(2), L.Dense(2)])
    with pytest.raises(ValueError, match=r'balance="parameters".*\(None, None, 3\)'):
        stage_starts(model, 2, "time")
    assert stage_starts(model, 2, "parameters") == [0, 1]


def test_parts_and_what_goes_between_them():
    inputs = keras.Input((4,))
    first = L.Dense(4)(inputs)
    second = L.Dense(4)(first)
    third = L.Dense(4)(second)
    model = keras.Model(inputs, [L.Add()([third, first, inputs]), second])
    found = cut(model, [0, 1, 2])
    numbers = [(part.uses, part.makes, part.carries) for part in found.parts]
    # 0: the input; 1, 2, 3: the layers; 4: the sum
    assert numbers == [([0], [1], [0]), ([1], [2], [0, 1]), ([0, 1, 2], [4], [2])]
    assert (found.inputs, found.outputs) == ([0], [4, 2])
    x = np.ones((2, 4), "float32")
    tensors = {0: tf.constant(x)}
    for part in found.parts:
        given = [tensors[i] for i in part.uses]
        tensors[part.makes[0]] = part.model(given if len(given) > 1 else given[0])
    np.testing.assert_allclose(tensors[4], model(x)[0])


def test_layers_that_cannot_be_cut():
    inputs, twice = keras.Input((6,)), L.Dense(6, name="twice")
    model = keras.Model(inputs, L.Dense(1)(L.ReLU()(twice(L.ReLU()(twice(inputs))))))
    with pytest.raises(ValueError, match="'twice' in the stages 0 and 1"):
        cut(model, [0, 2])
    cut(model, [0, 3])
    recurrent = keras.Sequential([keras.Input((3, 2), batch_size=4), L.LSTM(2, stateful=True, name="keeps"), L.Dense(1)])
    with pytest.raises(ValueError, match="'keeps' with stateful=True"):
        cut(recurrent, [0, 1])
