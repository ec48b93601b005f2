"""Where the settings of ranks differ."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

MAX_LINES = 8
_ABSENT = object()


def differences(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """Names each setting that is not equal on all ranks, with its values and their ranks.

    Args:
        settings: The settings of each rank, by rank: nested dictionaries and lists of plain values.

    Returns:
        One line a setting, at most `MAX_LINES` and a line that counts the rest; empty if all are equal.

    Example:
        >>> differences([{"fit": {"epochs": 2}}, {"fit": {"epochs": 3}}])
        ['fit.epochs: 2 on rank 0, 3 on rank 1']
    """
    flat = [dict(_flatten(setting)) for setting in settings]
    names = list(dict.fromkeys(name for setting in flat for name in setting))
    lines = [_line(name, [setting.get(name, _ABSENT) for setting in flat]) for name in names]
    differing = [line for line in lines if line]
    rest = differing[MAX_LINES:]
    return differing[:MAX_LINES] + ([f"and {len(rest)} more"] if rest else [])


def _flatten(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping) and (value or not name):
        for key, inner in value.items():
            yield from _flatten(inner, f"{name}.{key}" if name else str(key))
    elif isinstance(value, list | tuple) and value:
        for index, inner in enumerate(value):
            yield from _flatten(inner, f"{name}[{index}]")
    else:
        yield name, value


def _line(name: str, values: Sequence[Any]) -> str:
    ranks: dict[str, list[int]] = {}
    for rank, value in enumerate(values):
        ranks.setdefault("absent" if value is _ABSENT else repr(value), []).append(rank)
    if len(ranks) == 1:
        return ""
    return f"{name}: " + ", ".join(f"{value} on {_name_ranks(where)}" for value, where in ranks.items())


def _name_ranks(ranks: Sequence[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {' and '.join(map(str, ranks))}"
