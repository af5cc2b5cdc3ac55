"""Property inference on whole runs."""

import logging

import pytest
import torch
from federations import SMALL

from fl_app.client_app import app
from fl_app.config.build import server_parts
from fl_app.config.compose import ConfigError
from fl_app.config.trust import WHOLE
from fl_app.data import Samples
from fl_app.data.traits import trait_of
from fl_app.flower import InlineGrid
from fl_app.results import load_run
from fl_app.running.federation import run_federation
from fl_app.running.properties import draw_batches


@pytest.fixture(autouse=True)
def _quiet():
    logging.getLogger("flwr").setLevel(logging.ERROR)


def run(folder, overrides):
    text = f"{SMALL} attack=property attack.examples=20 clients=2 {overrides} run_dir={folder}"
    run_federation(InlineGrid(app, 2, run_config={"overrides": text}), text, WHOLE, client_app=app)
    return load_run(folder)


@pytest.mark.parametrize("defense", ["none", "dgp"])
def test_every_update_is_asked_in_every_form(tmp_path, defense):
    found = run(tmp_path, f"defense={defense} model=mlp attack.property=class:3 attack.holds=any")
    assert [row.adaptive for row in found.properties] == ([False] if defense == "none" else [False, True])
    for row in found.properties:
        assert row.gave_up is None
        assert {(a.round, a.client) for a in row.answers} == {(1, 0), (1, 1), (2, 0), (2, 1)}
        assert row.asked == 4
        assert row.right == sum((a.score > 0) == a.truth for a in row.answers)
        assert row.rate_low <= row.rate <= row.rate_high
    assert 'data-fact="property"' in (tmp_path / "report.html").read_text()


def test_batches_of_examples_have_the_property_that_they_are_said_to_have():
    samples = Samples(torch.randn(50, 3), torch.arange(50) % 5)
    for holds in ("any", "most"):
        trait = trait_of("class:2", holds, 5, ())
        batches = draw_batches(samples, trait, 7, 12, seed=1)
        answers = [trait.of_batch(samples.inputs[rows], samples.labels[rows]) for rows in batches]
        assert answers == [False, True] * 6
        assert all(len(rows) == 7 for rows in batches)


def test_a_feature_of_rows_is_a_property():
    inputs = torch.tensor([[0.0, -1.0], [1.0, 2.0], [1.0, -0.5]])
    labels = torch.zeros(3, dtype=torch.int64)
    category = trait_of("sex:Male", "most", 2, ("sex=Male", "age"))
    number = trait_of("age", "any", 2, ("sex=Male", "age"))
    assert category.has(inputs, labels).tolist() == [False, True, True]
    assert number.has(inputs, labels).tolist() == [False, True, False]
    assert category.of_batch(inputs, labels)
    assert not category.of_batch(inputs[:2], labels[:2])


@pytest.mark.parametrize("wrong", ["class:10", "sex:Male", "anything"])
def test_a_property_that_samples_do_not_have_is_refused_before_the_run(wrong):
    with pytest.raises(ConfigError, match=r"attack\.property"):
        server_parts(f"{SMALL} attack=property attack.property={wrong}")
