"""Signs on a common support: positions without data, one bit an entry, and bytes near their bound."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fl_app.models import lenet_zhu
from fl_app.seeding import generator_for
from fl_app.transforms import chain, error_feedback, send_common_signs, take_sign
from fl_app.types import RoundContext
from fl_app.wire import decode, encode


def ctx(round=1, client=0, purpose="test"):
    return RoundContext(round, client, generator_for(0, round, client, purpose))


def like_lenet(seed=0):
    torch.manual_seed(seed)
    return {name: torch.randn_like(p) for name, p in lenet_zhu(10, (3, 32, 32)).named_parameters()}


SIGNS = send_common_signs()


def sent_by(update, transform=SIGNS, **where):
    return transform.apply(update, transform.init(update), ctx(**where))[0]


def test_all_clients_of_a_round_send_the_same_positions_whatever_their_data():
    masks = [
        {name: t != 0 for name, t in sent_by(like_lenet(seed), client=seed).items()} for seed in range(3)
    ]
    for other in masks[1:]:
        assert all(torch.equal(masks[0][name], other[name]) for name in other)
    later = {name: t != 0 for name, t in sent_by(like_lenet(), round=2).items()}
    assert not torch.equal(list(later.values())[2], list(masks[0].values())[2])


def test_shares_go_by_the_kind_of_layer():
    sent = sent_by(like_lenet())
    kept = [int((t != 0).sum()) for t in sent.values()]
    # conv 900 + 12, conv 3600 + 12, conv 3600 + 12, linear 7680 + 10
    assert kept == [900, 12, 180, 12, 180, 12, 2304, 10]


@settings(deadline=None, max_examples=50)
@given(
    st.lists(st.floats(-10, 10, width=32), min_size=1, max_size=60),
    st.floats(0.01, 1.0),
    st.integers(1, 9),
)
def test_against_a_loop(values, share, round):
    transform = send_common_signs(first=share, hidden=share, output=share, biases=share, seed=7)
    update = {"b": torch.tensor(values, dtype=torch.float64)}
    drawn = transform.drawn(update, round)
    where = list(drawn.positions("b", len(values))) if drawn.counts["b"] < len(values) else range(len(values))
    (sent,) = transform.apply(update, {}, ctx(round))[0].values()
    chosen = [values[i] for i in where]
    size = sum(map(abs, chosen)) / len(chosen)
    for i, value in enumerate(values):
        if i not in where:
            assert sent[i] == 0
        elif value != 0:
            assert float(sent[i]) == pytest.approx(math.copysign(size, value))
        else:
            assert abs(float(sent[i])) == pytest.approx(size)


def test_zeros_get_either_sign_and_do_not_show():
    update = {"b": torch.cat([torch.zeros(5000), torch.ones(5000)])}
    sent = sent_by(update)["b"]
    assert sent.abs().unique().numel() == 1
    positive = int((sent[:5000] > 0).sum())
    assert abs(positive - 2500) < 5 * math.sqrt(1250)
    plain, _ = take_sign().apply(update, {}, ctx())
    assert (plain["b"][:5000] == 0).all()  # what a sign without randomness shows


def test_flipped_signs_are_as_many_as_asked_for():
    update = {"b": torch.ones(20_000)}
    sent = sent_by(update, send_common_signs(flip=0.3, magnitude=0.5))["b"]
    turned = int((sent < 0).sum())
    assert abs(turned - 6000) < 5 * math.sqrt(20_000 * 0.3 * 0.7)
    assert sent.abs().unique().tolist() == [0.5]


def test_with_a_magnitude_nothing_but_bits_depends_on_data():
    transform = send_common_signs(magnitude=0.01)
    update = like_lenet()
    louder = {name: 1000 * t for name, t in update.items()}
    torch.testing.assert_close(sent_by(update, transform), sent_by(louder, transform), rtol=0, atol=0)


@pytest.mark.parametrize("share", [0.01, 0.05, 0.2, 0.5])
def test_a_bit_an_entry_travels_and_no_positions(share):
    transform = send_common_signs(first=share, hidden=share, output=share, biases=share)
    update = {
        "a.weight": torch.randn(300, 200),
        "b.weight": torch.randn(400, 300),
        "b.bias": torch.randn(400),
    }
    sent = sent_by(update, transform)
    entries = sum(int((t != 0).sum()) for t in sent.values())
    blob = encode(sent, drawn=transform.drawn(sent, 1))
    bound = entries / 8
    assert bound < len(blob) <= 1.03 * bound + 100  # magnitudes, shapes, seed and frame
    assert len(encode(sent)) > 2 * len(blob) or share == 0.5  # with positions
    torch.testing.assert_close(decode(blob, update), sent, rtol=0, atol=0)


def test_lenets_message_is_the_bound_and_a_frame():
    sent = sent_by(like_lenet())
    entries = sum(int((t != 0).sum()) for t in sent.values())
    blob = encode(sent, drawn=SIGNS.drawn(sent, 1))
    assert entries == 3610
    assert len(blob) <= entries / 8 + 170
    assert len(blob) < 0.011 * 4 * sum(t.numel() for t in sent.values())


def test_feedback_and_chains_pass_the_support_on():
    update = like_lenet()
    for transform in (error_feedback(SIGNS), chain(a=SIGNS)):
        assert transform.drawn(update, 3) == SIGNS.drawn(update, 3)


def test_sent_plus_residual_is_the_sum_of_updates():
    transform = error_feedback(SIGNS)
    update = like_lenet()
    state, sent = transform.init(update), {name: torch.zeros_like(t) for name, t in update.items()}
    for round in range(1, 6):
        delta, state = transform.apply(update, state, ctx(round))
        sent = {name: sent[name] + delta[name] for name in sent}
    for name, t in update.items():
        torch.testing.assert_close(sent[name] + state["e"][name], 5 * t, rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    "bad",
    [
        {"first": -0.1},
        {"hidden": 1.1},
        {"first": 0, "hidden": 0, "output": 0, "biases": 0},
        {"flip": 0.5},
        {"flip": True},
        {"magnitude": 0},
        {"magnitude": math.inf},
    ],
)
def test_bad_settings_are_refused(bad):
    with pytest.raises(ValueError, match="send_common_signs"):
        send_common_signs(**bad)


def test_what_has_no_sign_is_refused():
    with pytest.raises(ValueError, match="send_common_signs: a tensor of shape"):
        sent_by({"b": torch.tensor([1.0, math.nan])})
