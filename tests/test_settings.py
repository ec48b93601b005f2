import pytest

from tfdist.settings import differences
from tfdist.settings import MAX_LINES


@pytest.mark.parametrize(
    ("settings", "lines"),
    [
        ([{"a": 1}, {"a": 1}], []),
        ([{"a": {"b": 1}}, {"a": {"b": 2}}, {"a": {"b": 1}}], ["a.b: 1 on ranks 0 and 2, 2 on rank 1"]),
        ([{"a": [1, 2]}, {"a": [1]}], ["a[1]: 2 on rank 0, absent on rank 1"]),
        ([{"a": []}, {"a": ["x"]}], ["a: [] on rank 0, absent on rank 1", "a[0]: absent on rank 0, 'x' on rank 1"]),
        ([{"a": None}, {}], ["a: None on rank 0, absent on rank 1"]),
        ([{"a": "absent"}, {}], ["a: 'absent' on rank 0, absent on rank 1"]),
    ],
)
def test_differences(settings, lines):
    assert differences(settings) == lines


def test_many_differences_are_counted():
    lines = differences([{str(i): 0 for i in range(20)}, {str(i): 1 for i in range(20)}])
    assert len(lines) == MAX_LINES + 1
    assert lines[-1] == f"and {20 - MAX_LINES} more"
