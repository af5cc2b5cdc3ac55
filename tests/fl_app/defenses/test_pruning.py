"""A pruning defense is its transform, with error feedback unless it is switched off."""

import pytest
import torch

from fl_app.defenses import adgp, dgp, fl_basic, fl_top, graddrop, outpost, protect, topk
from fl_app.transforms import (
    drop_smallest,
    error_feedback,
    keep_topk,
    perturb_outpost,
    prune_aligned,
    prune_dual,
)

UPDATE = {"w": torch.linspace(-1, 1, 41), "b": torch.tensor([0.3, -0.2, 0.5, 0.1, 0.7])}
PAIRS = {
    "topk": (lambda on: topk(share=0.2, error_feedback=on), lambda: keep_topk(0.2)),
    "dgp": (lambda on: dgp(k1=0.1, k2=0.5, min_size=6, error_feedback=on), lambda: prune_dual(0.1, 0.5, 6)),
    "adgp": (lambda on: adgp(k=0.3, k1=0.1, error_feedback=on), lambda: prune_aligned(0.3, 0.1)),
    "graddrop": (lambda on: graddrop(rate=0.6, error_feedback=on), lambda: drop_smallest(0.6)),
    "outpost": (
        lambda on: outpost(prune=0.5, noise=0.3, noisy=0.7, beta=1.0, error_feedback=on),
        lambda: perturb_outpost(0.5, 0.3, 0.7, 1.0),
    ),
}


@pytest.mark.parametrize("feedback", [True, False])
@pytest.mark.parametrize("name", PAIRS)
def test_a_named_defense_is_its_transform(name, feedback, make_context):
    made, expected = PAIRS[name]
    sent = []
    for transform in (made(feedback).transform, error_feedback(expected(), enabled=feedback)):
        state = transform.init(UPDATE)
        for number in (1, 2):
            ctx = make_context(
                round=number,
                weights={key: tensor * 2 for key, tensor in UPDATE.items()},
                locations={key: torch.ones_like(tensor, dtype=torch.bool) for key, tensor in UPDATE.items()},
            )
            update, state = transform.apply(UPDATE, state, ctx)
            sent.append(update)
    torch.testing.assert_close(sent[:2], sent[2:], rtol=0, atol=0)
    assert ("e" in state) is feedback


def test_error_feedback_is_on_or_off_and_nothing_between():
    with pytest.raises(ValueError, match="error_feedback: must be true or false, got 'yes'"):
        topk(share=0.2, error_feedback="yes")


def test_a_defense_tells_its_strategy_what_both_must_agree_on():
    assert adgp(k=0.3, k1=0.1, location="vote").server == {
        "k": 0.3,
        "min_size": 4,
        "location": "vote",
        "voters": 3,
    }
    assert fl_basic(share=0.1).server == {"share": 0.1}
    assert protect(a=fl_top(share=0.1, public_lr=0.5), b=topk(share=1.0)).server == {
        "share": 0.1,
        "chosen_by": "public",
        "public_steps": 20,
        "public_lr": 0.5,
    }
