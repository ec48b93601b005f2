"""What every compressor can do."""

from __future__ import annotations

import abc
from typing import Any


class Compressor(abc.ABC):
    """Makes the rows of a matrix smaller on the wire.

    ```
    wire = encode(x)              x: float32, (rows, n), n a multiple of 16        wire: uint8, (rows, bytes)
    y    = decode(wire, n)        y is x, as near as the wire has room for; a row depends on nothing but that row
    ```

    To add one, subclass this, and name it in `tfdist/compression/__init__.py`.

    Attributes:
        name: What a user writes, such as "fp16".
        wire_bits: The bits of an element on the wire, for predictions.
        divide_first: Whether each rank's part is divided by the number of ranks before it is encoded, and the sum multiplied after,
            so that what is summed cannot exceed the range of the wire's dtype where the mean does not.
        keeps_error: Whether what the wire had no room for is kept by the rank, and added to what it sends next.
    """

    name: str
    wire_bits: int
    divide_first: bool = False
    keeps_error: bool = False

    @abc.abstractmethod
    def encode(self, x: Any) -> Any:
        """Makes the wire's bytes of each row."""

    @abc.abstractmethod
    def decode(self, wire: Any, length: int) -> Any:
        """Makes rows of `length` float32 elements of the wire's bytes."""
