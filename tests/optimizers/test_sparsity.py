import pytest

from tfdist.optimizers.sparsity import check_ramp
from tfdist.optimizers.sparsity import sample_of
from tfdist.optimizers.sparsity import sends_dense


@pytest.mark.parametrize(
    ("sparsity", "ranks", "dense"),
    [(0.0, 1, True), (0.5, 1, False), (0.75, 4, True), (0.75, 3, False), (0.999, 999, False), (0.999, 1001, True)],
)
def test_dense_where_indices_would_be_more(sparsity, ranks, dense):
    assert sends_dense(sparsity, ranks) is dense


@pytest.mark.parametrize("length", [1, 2, 999, 10_000, 16_384, 2_359_296])
@pytest.mark.parametrize("sparsity", [0.0, 0.75, 0.999])
def test_a_sample_fits_into_the_array(length, sparsity):
    count, stride = sample_of(length, sparsity)
    assert stride % 2 == 1
    assert 1 <= count <= length
    assert (stride - 1) + stride * (count - 1) < length  # from any offset below the stride
    assert count == length or count * (1 - sparsity) >= 39.99


@pytest.mark.parametrize(
    ("sparsity", "rampup", "rampup_steps", "message"),
    [
        (1.0, (), 1, r"`sparsity` .* in \[0, 1\). Received: sparsity=1.0"),
        (-0.1, (), 1, "Received: sparsity=-0.1"),
        (True, (), 1, "Received: sparsity=True"),
        (0.9, (0.5, 0.4), 1, r"`rampup` must rise.* Received: rampup=\(0.5, 0.4\), sparsity=0.9"),
        (0.9, (0.95,), 1, "stay below `sparsity`"),
        (0.9, (1.5,), 1, r"Received: rampup\[0\]=1.5"),
        (0.9, (0.5,), 0, "whole number of steps, 1 or more. Received: rampup_steps=0"),
        (0.9, (0.5,), 2.0, "Received: rampup_steps=2.0"),
    ],
)
def test_wrong_arguments(sparsity, rampup, rampup_steps, message):
    with pytest.raises(ValueError, match=message):
        check_ramp(sparsity, rampup, rampup_steps)
