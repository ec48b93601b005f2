import pytest

from tfdist.optimizers.patterns import check_patterns
from tfdist.optimizers.patterns import matches
from tfdist.optimizers.patterns import multiplier
from tfdist.optimizers.patterns import NO_LAYERS


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("dense/bias", True),
        ("bias", True),
        ("block1_conv/conv_bias", True),
        ("batch_normalization/gamma", True),
        ("layer_normalization/beta", True),
        ("dense/kernel", False),
        ("bias_net/kernel", False),
        ("embedding/embeddings", False),
    ],
)
def test_what_has_no_layer(path, found):
    assert matches(path, NO_LAYERS) is found


def test_the_first_pattern_counts():
    numbers = {"stem": 0.5, "kernel$": 2.0}
    assert [multiplier(path, numbers, 1.0) for path in ("stem/kernel", "head/kernel", "head/bias")] == [0.5, 2.0, 1.0]


@pytest.mark.parametrize(("patterns", "message"), [("bias", "not one string. Received: x='bias'"), (["("], r"Received: '\('")])
def test_wrong_patterns(patterns, message):
    with pytest.raises(ValueError, match=message):
        check_patterns("x", patterns)
