import keras
import numpy as np
import pytest

from tests.test_training import mlp
from tests.test_training import some_data
from tfdist._keras import KERAS_3
from tfdist.callbacks import OptimizerRestart
from tfdist.optimizers import DGC
from tfdist.optimizers import GlobalClip
from tfdist.optimizers import LARS

OPTIMIZERS = {
    "SGD": lambda: keras.optimizers.SGD(0.1, momentum=0.9),
    "Adam": lambda: keras.optimizers.Adam(0.01),
    "LARS": lambda: LARS(0.5, trust_coefficient=0.05),
    "GlobalClip": lambda: GlobalClip(keras.optimizers.RMSprop(0.01, momentum=0.5), global_clipnorm=1.0),
    "DGC": lambda: DGC(0.1, sparsity=0.5, rampup=(), dense_below=10),
}
if not KERAS_3:
    OPTIMIZERS["legacy Adam"] = lambda: keras.optimizers.legacy.Adam(0.01)


def fit(model, epochs=2, callbacks=(), **kwargs):
    model.fit(*some_data(), batch_size=12, epochs=epochs, shuffle=False, verbose=0, callbacks=list(callbacks), **kwargs)
    return model


def build(optimizer):
    model = mlp()
    model.compile(optimizer(), "mse")
    return model


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_it_goes_on_as_a_new_optimizer_does(name):
    restarted, new = (build(OPTIMIZERS[name]) for _ in range(2))
    fit(restarted, 4, [OptimizerRestart(epochs=[2], residuals=True)])
    fit(new)
    new.compile(OPTIMIZERS[name](), "mse")
    fit(new)
    for mine, other in zip(restarted.get_weights(), new.get_weights(), strict=True):
        np.testing.assert_allclose(mine, other, atol=1e-6)


def restarts(callback, epochs, **kwargs):
    found = []

    class Look(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            slots = self.model.optimizer.slots("velocity")
            if slots and not any(np.any(slot.numpy()) for slot in slots):
                found.append(epoch)

    fit(build(lambda: LARS(0.0 if callback.get_config()["monitor"] else 0.1)), epochs, [callback, Look()], **kwargs)
    return found


def test_when():
    assert restarts(OptimizerRestart(epochs=[1, 3]), 5) == [1, 3]
    assert restarts(OptimizerRestart(every=2), 6) == [2, 4]
    assert restarts(OptimizerRestart(every=2), 6, initial_epoch=3) == [4]


def test_when_the_loss_stops_falling():
    model = build(lambda: keras.optimizers.SGD(0.0, momentum=0.9))
    callback, cleared = OptimizerRestart(monitor="loss", patience=2), []
    callback._restart = cleared.append
    fit(model, 6, [callback])
    assert cleared == [3, 5]


def test_chosen_slots_and_residuals():
    model = fit(build(OPTIMIZERS["DGC"]))
    kernel, optimizer = model.trainable_variables[0], model.optimizer
    before = optimizer.slot("residual", kernel).numpy()
    assert np.any(before)
    OptimizerRestart(every=1)
    callback = OptimizerRestart(epochs=[0])
    callback.set_model(model)
    callback.on_epoch_begin(0)
    np.testing.assert_array_equal(optimizer.slot("residual", kernel).numpy(), before)
    assert not np.any(optimizer.slot("velocity", kernel).numpy())
    callback = OptimizerRestart(epochs=[0], slots=["residual"], residuals=True)
    callback.set_model(model)
    callback.on_epoch_begin(0)
    assert not np.any(optimizer.slot("residual", kernel).numpy())
    unknown = OptimizerRestart(epochs=[0], slots=["second_moment"])
    unknown.set_model(model)
    with pytest.raises(ValueError, match=r"has such a name. Received: slots=\['second_moment'\]"):
        unknown.on_epoch_begin(0)


def test_state():
    callback, again = (OptimizerRestart(monitor="loss", patience=2) for _ in range(2))
    for loss in (1.0, 2.0):
        callback.on_epoch_end(0, {"loss": loss})
    again.set_state(callback.get_state())
    again.on_epoch_end(0, {"loss": 2.0})
    assert again.get_state()["is_due"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "Give one of .* Received: epochs=None, every=None, monitor=None"),
        ({"epochs": [1], "every": 2}, "Give one of"),
        ({"every": 0}, "Received: every=0"),
        ({"monitor": "loss", "patience": 0}, "Received: patience=0"),
        ({"every": 1, "slots": "velocity"}, "not one string. Received: slots='velocity'"),
    ],
)
def test_wrong_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        OptimizerRestart(**arguments)
