import keras
import numpy as np

from tfdist.callbacks import StepTime


def test_median_time_of_a_step_is_logged_without_the_first():
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    seen = []
    callbacks = [StepTime(), keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: seen.append(dict(logs)))]
    history = model.fit(np.ones((8, 1)), np.ones((8, 1)), batch_size=2, epochs=2, verbose=0, callbacks=callbacks)
    times_s = history.history["step_time_s"]
    assert [logs["step_time_s"] for logs in seen] == times_s
    assert all(0 < time_s < 1 for time_s in times_s)


def test_an_epoch_of_one_step_has_no_time():
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    history = model.fit(np.ones((2, 1)), np.ones((2, 1)), batch_size=2, epochs=1, verbose=0, callbacks=[StepTime()])
    assert np.isnan(history.history["step_time_s"][0])
