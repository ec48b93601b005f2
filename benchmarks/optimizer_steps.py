"""How long does an optimizer's step take, without the wire?

    python benchmarks/optimizer_steps.py

ResNet-50's 161 variables and gradients, 102.2 MB, one process, one device. Keras's SGD with momentum, LARS, and DGC at 99.9 % take
turns. Prints medians and ratios. Writes results/optimizer_steps.json and .png.
"""

from __future__ import annotations

import statistics
import time

import common

STEPS = 15


def main() -> None:
    import keras
    import tensorflow as tf

    from tfdist.optimizers import DGC
    from tfdist.optimizers import LARS

    optimizers = {
        "SGD": keras.optimizers.SGD(0.001, momentum=0.9),
        "LARS": LARS(0.001, momentum=0.9),
        "DGC": DGC(0.001, momentum=0.9, sparsity=0.999, rampup=()),
    }
    steps = {name: step_of(tf, optimizer) for name, optimizer in optimizers.items()}
    times_s: dict[str, list[float]] = {name: [] for name in steps}
    for number in range(STEPS + 2):
        for name, step in steps.items():
            begin = time.perf_counter()
            step()
            if number >= 2:
                times_s[name].append(time.perf_counter() - begin)
    medians_ms = {name: 1000 * statistics.median(values) for name, values in times_s.items()}
    for name, median_ms in medians_ms.items():
        print(f"{name:6} {median_ms:7.1f} ms (median of {STEPS}), {median_ms / medians_ms['SGD']:.2f} x SGD")
    path = common.write("optimizer_steps", {"times_s": times_s})
    common.draw_bars(path, "One step with ResNet-50's variables", "ms", {"one process": medians_ms})


def step_of(tf, optimizer):
    shapes = common.resnet50_shapes()
    names = ["kernel" if len(shape) > 1 else "bias" for shape in shapes]
    variables = [tf.Variable(tf.random.stateless_normal(s, (1, 2)), name=n) for s, n in zip(shapes, names, strict=True)]
    gradients = [tf.Variable(tf.random.stateless_normal(shape, (3, 4)), trainable=False) for shape in shapes]
    optimizer.build(variables)

    @tf.function
    def step():
        optimizer.apply_gradients([(g.read_value(), v) for g, v in zip(gradients, variables, strict=True)])

    return step


if __name__ == "__main__":
    main()
