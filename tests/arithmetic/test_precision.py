"""Which outputs and losses are found in 16 bits, and when a loss scale has gone too far."""

import pytest

from phalanx.errors import SettingError
from phalanx.precision import Head, Precision, findings, text, trouble, trouble_text


def head(**facts):
    usual = {
        "layer": "out",
        "kind": "Dense",
        "activation": "linear",
        "computes": "float32",
        "gives": "float32",
        "loss": "mse",
    }
    return Head(**(usual | facts))


def in_dtype(dtype, **facts):
    return head(computes=dtype, gives=dtype, **facts)


@pytest.mark.parametrize("activation", ["softmax", "sigmoid"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("loss", ["kl_divergence", "mse", None])
def test_probabilities_in_16_bits_are_found_with_or_without_a_loss(activation, dtype, loss):
    (found,) = findings([in_dtype(dtype, activation=activation, loss=loss)])
    assert found.layer == "out"
    assert "'out'" in found.reason and activation in found.reason and f" {dtype}:" in found.reason
    assert 'dtype="float32"' in found.fix and 'name="out"' in found.fix


def test_a_loss_that_normalises_makes_softmax_harmless_in_bfloat16_alone():
    cross_entropy = {"loss": "categorical_crossentropy", "normalises": True}
    assert findings([in_dtype("bfloat16", activation="softmax", **cross_entropy)]) == ()
    assert len(findings([in_dtype("bfloat16", activation="sigmoid", **cross_entropy)])) == 1
    assert len(findings([in_dtype("float16", activation="softmax", **cross_entropy)])) == 1


@pytest.mark.parametrize("from_logits", [True, False])
def test_logits_and_values_are_found_in_float16_and_harmless_in_bfloat16(from_logits):
    (found,) = findings([in_dtype("float16", from_logits=from_logits)])
    assert ("logits" in found.reason) == from_logits
    assert findings([in_dtype("bfloat16", from_logits=from_logits)]) == ()


def test_an_output_without_a_loss_may_have_any_dtype_if_it_is_no_probability():
    assert findings([in_dtype("float16", loss=None)]) == ()


@pytest.mark.parametrize("activation", ["softmax", "sigmoid", "linear", None])
@pytest.mark.parametrize("from_logits", [True, False])
def test_nothing_is_found_in_float32(activation, from_logits):
    assert findings([head(activation=activation, from_logits=from_logits)]) == ()


def test_a_cast_after_16_bit_probabilities_does_not_help_but_after_logits_it_does():
    probabilities = head(activation="softmax", computes="float16", gives="float32")
    assert len(findings([probabilities])) == 1
    assert findings([head(computes="float16", gives="float32", from_logits=True)]) == ()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_loss_that_computes_in_16_bits_is_found_behind_a_float32_output(dtype):
    (found,) = findings([head(loss_computes=dtype)])
    assert f"adds up rows in {dtype}" in found.reason


def test_one_text_names_every_layer_and_has_three_parts():
    heads = [in_dtype("float16", layer=name, activation="softmax") for name in ("p", "q")]
    lines = text(findings([head(), *heads])).splitlines()
    assert len(lines) == 3
    assert "'p'" in lines[1] and "'q'" in lines[1]
    assert lines[2].endswith("""dtype="float32", name="p")   # likewise 'q'""")


@pytest.mark.parametrize(
    "in_a_row, scale, words",
    [
        (0, 32768.0, None),
        (4, 2048.0, None),
        (0, 1.0625, None),
        (5, 1024.0, "5 steps in a row"),
        (1, 1.0, "scale is 1,"),
        (0, 0.5, "scale is 0.5,"),
        (0, 0.0, "scale is 0,"),
        (0, float("inf"), "scale is inf,"),
        (0, float("nan"), "scale is nan,"),
    ],
)
def test_five_skips_in_a_row_or_a_scale_of_one_are_trouble(in_a_row, scale, words):
    reason = trouble(in_a_row, scale)
    assert (reason is None) == (words is None)
    if words:
        assert words in reason
        assert "mixed_bfloat16" in trouble_text(reason)


@pytest.mark.parametrize("strict", [1, "yes", None])
def test_strict_is_a_boolean(strict):
    with pytest.raises(SettingError, match=r"received: strict="):
        Precision(strict=strict)


def test_the_setting_is_a_value():
    assert Precision() == Precision(strict=False) != Precision(strict=True)
    with pytest.raises(TypeError):
        Precision(True)
