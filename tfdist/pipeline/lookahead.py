"""A batch ahead, so that the last one is known as such."""

from __future__ import annotations

from typing import Any


class Lookahead:
    """Reads batches, each time with whether there are more.

    Args:
        iterator: Yields batches.

    Example:
        >>> ahead = Lookahead(iter([(1, 2), (3, 4), (5, 6)]))
        >>> ahead.next(2), ahead.next(2)
        (([(1, 2), (3, 4)], False), ([(5, 6)], True))
    """

    def __init__(self, iterator: Any) -> None:
        self.iterator = iterator
        self._next: Any = None
        self._is_begun = False

    def next(self, count: int) -> tuple[list[Any], bool]:
        """The next batches, fewer at the end.

        Raises:
            StopIteration: If there is none.
        """
        if not self._is_begun:
            self._next, self._is_begun = next(self.iterator, None), True
        if self._next is None:
            raise StopIteration
        found: list[Any] = []
        while self._next is not None and len(found) < count:
            found.append(self._next)
            self._next = next(self.iterator, None)
        return found, self._next is None
