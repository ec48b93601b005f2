"""This process's devices, by names such as "GPU:0"."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from tfdist.topology import device_share


def short_name(name: str) -> str:
    """The kind and the number of a device, out of any form of its name.

    Example:
        >>> short_name("/job:localhost/replica:0/task:0/device:gpu:1")
        'GPU:1'
    """
    return ":".join(name.strip("/").upper().split(":")[-2:])


def known_devices(kind: str = "") -> list[str]:
    """The names of this process's logical devices, of one kind or of all."""
    names = [short_name(device.name) for device in tf.config.list_logical_devices()]
    return [name for name in names if name.startswith(kind)]


def share_devices(local_rank: int, local_size: int) -> list[str]:
    """Takes this process's part of the host's GPUs, with memory growth on; without GPUs, all its logical CPUs.

    Args:
        local_rank: Which of the processes of this host it is.
        local_size: How many there are.

    Raises:
        ValueError: If there are fewer GPUs than processes.
    """
    gpus = tf.config.list_physical_devices("GPU")
    if not gpus:
        return known_devices("CPU")
    mine = [gpus[index] for index in device_share(len(gpus), local_rank, local_size)]
    tf.config.set_visible_devices(mine, "GPU")
    for gpu in mine:
        tf.config.experimental.set_memory_growth(gpu, True)
    return known_devices("GPU")


def find_devices(names: Sequence[str]) -> list[str]:
    """The short names of devices that a user named.

    Raises:
        ValueError: If one does not exist or is named twice, or none is named.
    """
    short, known = [short_name(name) for name in names], known_devices()
    if not short or len(set(short)) < len(short) or not set(short) <= set(known):
        raise ValueError(
            f"`devices` must name devices of this process, each once, out of {known}. Received: devices={list(names)}."
        )
    return short
