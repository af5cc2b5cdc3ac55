"""A choice keeps its name only as long as its callables are those of its file."""

import pytest
from omegaconf import OmegaConf

from fl_app.config.true_names import true_names

STEPS = {"_target_": "a.chain", "first": {"_target_": "a.one"}, "second": {"_target_": "a.two", "k": 1}}


@pytest.mark.parametrize(
    ("made", "name"),
    [
        ({**STEPS, "third": {"_target_": "b.three"}}, "steps+b.three"),
        ({key: STEPS[key] for key in ("_target_", "first")}, "steps-a.two"),
        ({**STEPS, "second": {"_target_": "b.other"}}, "steps+b.other"),
        ({**STEPS, "_target_": "b.chain"}, "b.chain"),
    ],
)
def test_steps_that_were_added_or_removed_are_named(made, name):
    choices = {"defense": "steps"}
    chosen, composed = (OmegaConf.create({"choices": choices, "defense": node}) for node in (STEPS, made))
    assert true_names(chosen, composed) == {"defense": name}
    assert true_names(chosen, chosen) == {}
