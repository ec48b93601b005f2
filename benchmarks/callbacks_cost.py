"""What do all callbacks together cost on a step of about 20 ms?

    python benchmarks/callbacks_cost.py

Times epochs of `fit` of a small convolutional network with every callback of the package and with none, alternating in one run, and
prints the median of the ratios of neighbours. At most 1.03 is wanted. Writes benchmarks/results/callbacks_cost.json and .png.
`NoiseScaleMonitor` needs two replicas, and is left out; `CheckpointAndResume` writes after each epoch.
"""

from __future__ import annotations

import pathlib
import statistics
import tempfile
import time

import common
import keras
import numpy as np

import tfdist
from tfdist import callbacks
from tfdist.optimizers import GradientAccumulation

REPEATS = 15
STEPS, BATCH, PIXELS, CHANNELS = 60, 44, 28, 24
FAR = 10**6  # an epoch that does not come


def main() -> None:
    strategy = tfdist.HierarchicalStrategy()
    folder = tempfile.TemporaryDirectory()
    sides = {"callbacks": lambda: make_callbacks(pathlib.Path(folder.name)), "none": list}
    models = {side: build_model(strategy) for side in sides}
    # Gradients that vanish would have denormal numbers in them, which are slow.
    rng = np.random.default_rng(0)
    x, y = (rng.normal(size=(STEPS * BATCH, *shape)).astype("float32") for shape in ((PIXELS, PIXELS, 1), (1,)))
    step_ms: dict[str, list[float]] = {side: [] for side in sides}
    for repeat in range(REPEATS + 1):
        for side in sorted(sides, reverse=bool(repeat % 2)):
            timer = EpochTimer()
            callbacks_of_side = [*sides[side](), timer]
            models[side].fit(x, y, batch_size=BATCH, epochs=2, shuffle=False, verbose=0, callbacks=callbacks_of_side)
            if repeat:
                step_ms[side].append(1000 * timer.times_s[-1] / STEPS)
    medians_ms = {side: statistics.median(times) for side, times in step_ms.items()}
    # The speed of a shared machine changes from minute to minute: each epoch is compared with the one beside it.
    ratio = statistics.median(mine / other for mine, other in zip(step_ms["callbacks"], step_ms["none"], strict=True))
    print(f"median step: callbacks {medians_ms['callbacks']:.3f} ms, none {medians_ms['none']:.3f} ms, ratio {ratio:.3f}")
    path = common.write("callbacks_cost", {"step_ms": step_ms, "medians_ms": medians_ms, "ratio": ratio})
    common.draw_bars(path, f"All callbacks: ratio {ratio:.3f}", "median step, ms", {"one process, one device": medians_ms})


class EpochTimer(keras.callbacks.Callback):
    """Times epochs but the first, from end to end: what callbacks do between epochs is in it."""

    def __init__(self) -> None:
        super().__init__()
        self.times_s: list[float] = []
        self._end_s = 0.0

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        now_s = time.perf_counter()
        if epoch:
            self.times_s.append(now_s - self._end_s)
        self._end_s = now_s


def make_callbacks(folder: pathlib.Path) -> list[keras.callbacks.Callback]:
    """Those that change the rate do so at each step, and correct the momentum for it."""
    return [
        callbacks.CheckpointAndResume(tempfile.mkdtemp(dir=folder)),
        callbacks.LearningRateScaling(BATCH),
        callbacks.LearningRateWarmup(epochs=5),
        callbacks.CosineAnnealing(T_0=7),
        callbacks.PolynomialDecay(epochs=9),
        callbacks.CyclicalLearningRate(0.5),
        callbacks.StepDecay({FAR: 0.1}),
        callbacks.BatchSizeRamp({FAR: 2}, mode="accumulate"),
        callbacks.OptimizerRestart(epochs=[FAR]),
        callbacks.GradientNoise(1e-9),
        callbacks.RollbackOnDivergence(threshold=None, rate_factor=0.5),
        callbacks.StepTime(),
        callbacks.TrainingReport(tempfile.mkdtemp(dir=folder)),
    ]


def build_model(strategy: tfdist.HierarchicalStrategy) -> keras.Model:
    with strategy.scope():
        layers = [keras.layers.Conv2D(CHANNELS, 3, activation="relu") for _ in range(4)]
        pooled = [keras.layers.GlobalAveragePooling2D(), keras.layers.Dense(1)]
        model = keras.Sequential([keras.Input((PIXELS, PIXELS, 1)), *layers, *pooled])
        model.compile(GradientAccumulation(keras.optimizers.SGD(1e-9, momentum=0.9), 1), "mse")
    return model


if __name__ == "__main__":
    main()
