"""A node that attacks its own updates: what it withholds, what it lets go, and what the server is told."""

import logging

import pytest
from hostile_server import SMALL, code_of, model_of, node, order, parts_of, send

from fl_app.policy import OwnAttackLimits, Policy, load_policy
from fl_app.policy.refusal import TEXTS
from fl_app.policy.words import in_words

ALONE = "min_batch = 1\nmin_samples = 1\n"
GATE = f"{ALONE}[own_attack]\nseconds = 30\n"


def answer(tmp_path, overrides, policy):
    text = f"{SMALL} model=mlp {overrides}"
    # a node reads its policy once
    file = tmp_path / f"{len(list(tmp_path.iterdir()))}.toml"
    file.write_text(policy)
    parts = parts_of(text)
    return send(node(text, policy=str(file)), order(parts.model, model_of(parts.model)))


def test_an_update_of_one_image_is_withheld_with_a_fixed_text_and_a_reason_in_the_log(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    assert code_of(answer(tmp_path, "defense=none batch_size=1", ALONE)) is None
    reply = answer(tmp_path, "defense=none batch_size=1", GATE)
    assert code_of(reply) == "leak"
    assert TEXTS["leak"] in reply.error.reason
    assert "SSIM" not in reply.error.reason
    assert "first_linear rebuilds a picture with SSIM 1.00" in caplog.text


def test_noise_that_hides_the_image_lets_it_leave(tmp_path):
    assert code_of(answer(tmp_path, "defense=gaussian defense.std=10 batch_size=1", GATE)) is None


def test_a_limit_on_labels_is_the_cheapest_attack(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    noisy = "defense=none batch_size=1"
    assert code_of(answer(tmp_path, noisy, f"{GATE}max_label_f1 = 0.5\n")) == "leak"
    assert "own attacks bias_labels in" in caplog.text


def test_time_is_a_limit(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    short = f"{ALONE}[own_attack]\nseconds = 1e-9\n"
    assert code_of(answer(tmp_path, "defense=none batch_size=1", short)) is None
    assert "may leave" in caplog.text


def test_the_policy_says_so_and_refuses_limits_that_cannot_be(tmp_path):
    said = in_words(Policy(own_attack=OwnAttackLimits(seconds=7, max_label_f1=0.25)))
    assert any("7 seconds" in line and "0.25" in line for line in said)
    file = tmp_path / "policy.toml"
    file.write_text("[own_attack]\nmax_ssim = 2\n")
    with pytest.raises(ValueError, match="max_ssim"):
        load_policy(file)
