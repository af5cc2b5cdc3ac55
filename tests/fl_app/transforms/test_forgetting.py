"""Error feedback that forgets: what decays and what is cleared, against a loop by hand."""

import pytest
import torch

from fl_app.seeding import generator_for
from fl_app.transforms import error_feedback, keep_topk
from fl_app.types import RoundContext


def run(transform, updates):
    state, sent = transform.init(updates[0]), []
    for number, update in enumerate(updates, 1):
        delta, state = transform.apply(
            update, state, RoundContext(number, 0, generator_for(0, number, 0, "t"))
        )
        sent.append(delta)
    return sent, state


def test_decay_against_a_loop():
    updates = [{"w": torch.randn(40, dtype=torch.float64)} for _ in range(12)]
    sent, state = run(error_feedback(keep_topk(0.1), decay=0.7), updates)
    e = torch.zeros(40, dtype=torch.float64)
    for update, delta in zip(updates, sent, strict=True):
        p = update["w"] + e
        kept = torch.zeros_like(p)
        top = p.abs().topk(4).indices
        kept[top] = p[top]
        torch.testing.assert_close(delta["w"], kept)
        e = 0.7 * (p - kept)
    torch.testing.assert_close(state["e"]["w"], e)


def test_one_image_is_forgotten_at_the_rate_of_the_decay():
    spike = {"w": torch.tensor([9.0, 1.0, 1.0, 1.0])}
    quiet = {"w": torch.zeros(4)}
    sent, _ = run(error_feedback(keep_topk(0.25), decay=0.5), [spike, quiet, quiet, quiet])
    assert [float(s["w"].abs().sum()) for s in sent] == [9.0, 0.5, 0.25, 0.125]


def test_a_jump_clears_the_residual_and_usual_rounds_do_not():
    usual, spike = {"w": torch.tensor([1.0, 0.5, 0.5, 0.5])}, {"w": torch.tensor([10.0, 5.0, 5.0, 5.0])}
    transform = error_feedback(keep_topk(0.25), jump=3.0)
    _, state = run(transform, [usual, usual])
    assert state["e"]["w"].any()
    _, state = run(transform, [usual, usual, spike])
    assert not state["e"]["w"].any()
    _, state = run(transform, [spike])  # nothing came before it
    assert state["e"]["w"].any()


def test_without_forgetting_the_state_is_as_before():
    _, state = run(error_feedback(keep_topk(0.25)), [{"w": torch.ones(4)}])
    assert set(state) == {"e", "inner"}


def test_traces_say_how_much_is_carried():
    (trace,) = error_feedback(keep_topk(0.25), decay=0.3).traces
    assert trace.feedback
    assert trace.memory == 0.3


@pytest.mark.parametrize(
    "bad", [{"decay": 0}, {"decay": 1.1}, {"decay": True}, {"jump": 1.0}, {"jump": float("inf")}]
)
def test_bad_settings_are_refused(bad):
    with pytest.raises(ValueError, match=f"error_feedback: {next(iter(bad))}"):
        error_feedback(keep_topk(0.25), **bad)
