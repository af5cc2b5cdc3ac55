"""The description of a run for a node's policy."""

import pytest

from fl_app.config.build import client_parts
from fl_app.policy import Noise

TINY = "data.train_per_class=4 data.test_per_class=2 clients=4 defense=fl_std attack=none"


@pytest.mark.parametrize(
    ("dp", "noise"), [("client", Noise("client", 1e-5, 1.0)), ("ftrl", None), ("none", None)]
)
def test_only_noise_that_the_node_itself_adds_is_noise_to_its_policy(dp, noise):
    assert client_parts(f"{TINY} dp={dp}").plan.noise == noise
