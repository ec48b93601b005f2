"""Which gradients travel together."""

from __future__ import annotations

from collections.abc import Sequence

DEFAULT_FUSION_BYTES = 16 * 2**20


def plan_buckets(
    sizes_bytes: Sequence[int], dtypes: Sequence[str], fusion_bytes: int = DEFAULT_FUSION_BYTES, first_bytes: int | None = None
) -> list[list[int]]:
    """Groups tensors into buckets that are reduced as one message each.

    ```
    layer          1        2        3        4         backward makes the gradient of layer 4 first
    sizes_bytes   [40,      8,       8,       8]        fusion_bytes = 16
    buckets       [[3, 2],           [1], [0]]          reverse order; what exceeds the threshold goes alone
                    8+8               8    40
    ```

    A bucket holds one dtype, and at most `fusion_bytes` unless a single tensor is larger. Tensors of several dtypes fill one open
    bucket for each dtype; buckets are ordered by their first tensor. The wire is idle until the first bucket is full: that one
    takes no more tensors once it holds `first_bytes`.

    Args:
        sizes_bytes: The size of each tensor in bytes, in layer order.
        dtypes: The dtype name of each tensor.
        fusion_bytes: The threshold; 0 puts each tensor into a bucket of its own. Defaults to 16 MiB.
        first_bytes: When the first bucket is full, if before `fusion_bytes`. Defaults to `None`.

    Returns:
        Lists of indices into `sizes_bytes`; each index is in exactly one list.

    Raises:
        ValueError: If the two lists differ in length or `fusion_bytes` is negative.

    Example:
        >>> plan_buckets([40, 8, 8, 8], ["float32"] * 4, fusion_bytes=16)
        [[3, 2], [1], [0]]

    Reference:
        Sergeev and Del Balso 2018, arXiv 1802.05799, section 4 (tensor fusion). There the threshold is filled by what is ready
        when a cycle ends; here the plan is the same on every rank by construction. A short first bucket: Li et al. 2020, arXiv
        2006.15704, section 4.2.
    """
    if len(sizes_bytes) != len(dtypes):
        raise ValueError(
            f"Each tensor needs a size and a dtype. Received: {len(sizes_bytes)} sizes_bytes and {len(dtypes)} dtypes."
        )
    if fusion_bytes < 0:
        raise ValueError(f"`fusion_bytes` must be 0 or more, since it is a size. Received: fusion_bytes={fusion_bytes}.")
    buckets: list[list[int]] = []
    open_buckets: dict[str, tuple[list[int], int]] = {}
    for index in reversed(range(len(sizes_bytes))):
        bucket, filled_bytes = open_buckets.get(dtypes[index], ([], 0))
        is_full = len(buckets) == 1 and first_bytes is not None and filled_bytes >= first_bytes
        if not bucket or is_full or filled_bytes + sizes_bytes[index] > fusion_bytes:
            bucket, filled_bytes = [], 0
            buckets.append(bucket)
        bucket.append(index)
        open_buckets[dtypes[index]] = (bucket, filled_bytes + sizes_bytes[index])
    return buckets
