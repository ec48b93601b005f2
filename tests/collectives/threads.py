"""Ranks that are threads of this process, for tests of what runs on a transport."""

from __future__ import annotations

import queue
import threading
import time

import numpy as np

from tfdist.communicators.transport import Transport


class ThreadTransport(Transport):
    """A rank's end of queues between threads; counts what it sends."""

    def __init__(self, rank, size, queues):
        self.rank, self.size, self._queues = rank, size, queues
        self.sent_bytes = self.messages = 0

    def send(self, view, destination):
        self.sent_bytes += view.nbytes
        self.messages += 1
        self._queues[self.rank, destination].put(view.copy())
        return lambda: True

    def receive(self, view, source):
        def arrived():
            try:
                data = self._queues[source, self.rank].get_nowait()
            except queue.Empty:
                return False
            view[...] = data
            return True

        return arrived

    def among(self, groups):
        raise NotImplementedError

    def wait_some(self, requests):
        for _ in range(20000):
            # In order, since messages between two ranks are matched in the order in which they were asked for.
            for index, request in enumerate(requests):
                if request is not None and request():
                    requests[index] = None
                    return [index]
            time.sleep(1e-4)
        raise TimeoutError(f"Rank {self.rank} waits for ever.")


def run_ranks(size, action):
    """Calls `action(transport)` in a thread for each rank; returns the results and the transports."""
    queues = {(a, b): queue.Queue() for a in range(size) for b in range(size)}
    transports = [ThreadTransport(rank, size, queues) for rank in range(size)]
    results, errors = [None] * size, []

    def work(rank):
        try:
            results[rank] = action(transports[rank])
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return results, transports


def inputs(size, length, dtype=np.float32):
    """An array of small whole numbers for each rank, so that sums are exact in any order."""
    return np.random.default_rng(length).integers(-50, 50, (size, length)).astype(dtype)
