"""Apps of many shapes are understood by a replay, attacked, and left as they are."""

import hashlib
from pathlib import Path

import pytest
from flwr.app import Error, Message

from fl_app.audit import AuditOptions, audit_app
from fl_app.audit.understanding import TOLERANCE

APPS = Path(__file__).parents[2] / "apps"

SHAPES = {
    "cnn_batchnorm": {
        "sends": "weights",
        "BatchNorm": True,
        "buffers sent": 3,
        "mode": "train",
        "local steps": 3,
    },
    "head_only": {"sends": "weights", "tensors sent": 2, "frozen parameters": 4, "optimiser": "Adam"},
    "lora": {"sends": "weights", "tensors sent": 3, "optimiser": "AdamW", "batch size": 4},
    "legacy": {"sends": "weights", "records": ["fitres.parameters"], "rounds declared": 4},
    "custom_records": {
        "sends": "negated weight differences",
        "records": ["change"],
        "weighting key": "n_samples",
    },
    "tabular": {"sends": "weights", "optimiser": "Adam", "samples": 16},
    "gradients": {"sends": "gradients", "optimiser": "none", "records": ["gradients"]},
    "mods_in_train": {"sends": "weights", "mods": ["arrays_size_mod", "halve"], "changed by mods": True},
    "local_dp": {"mods": ["LocalDpMod"], "changed by mods": True, "rounds declared": 20},
}


@pytest.mark.parametrize("name", SHAPES)
def test_a_replay_reproduces_the_reply(audit, name):
    report = audit(name)
    assert report.understood
    assert report.error <= TOLERANCE
    assert {key: report.facts[key] for key in SHAPES[name]} == SHAPES[name]
    assert report.grade is not None
    assert report.rounds == 2


BY_HAND = (
    "weights_by_hand",
    "data_by_hand",
    "clipped_and_noised",
    "sharpness_aware",
    "mixed_precision",
    "with_closure",
    "projected",
    "in_a_thread",
    "accumulated",
    "averaged",
)


@pytest.mark.parametrize("way", BY_HAND)
def test_what_an_app_does_by_hand_is_played_again(audit, way):
    report = audit("by_hand", f"way='{way}'")
    assert report.understood
    assert report.error <= TOLERANCE
    assert report.facts["learning rate"] == pytest.approx(0.1)
    assert report.facts["samples"] == (16 if way == "sharpness_aware" else 8)
    assert {r.situation for r in report.ladder.results} >= {"as sent"}
    assert not report.findings


@pytest.mark.parametrize(("way", "why"), [("constant", "depend on the batches"), ("scripted", "recorded")])
def test_an_update_that_the_batches_do_not_explain_is_not_understood(audit, way, why):
    report = audit("by_hand", f"way='{way}'")
    assert not report.understood
    assert why in report.reason
    assert report.grade is None


def test_two_models_are_played_together_and_the_second_is_no_exit(audit):
    report = audit("two_models", exits=24)
    assert report.understood
    assert report.error <= TOLERANCE
    assert report.facts["samples"] == 8
    assert not [f for f in report.findings if f.rule.endswith("exit")]


@pytest.mark.parametrize(("flaw", "nodes"), [("none", 2), ("forgotten", 2)])
def test_dp_sgd_is_understood_up_to_its_noise(audit, flaw, nodes):
    report = audit("opacus_dp", f"flaw='{flaw}'", nodes=nodes)
    assert report.understood
    assert report.error > TOLERANCE


def test_an_app_without_torch_gets_no_grade_and_a_reason(audit):
    report = audit("numpy_only")
    assert not report.understood
    assert report.grade is None
    assert report.reason
    assert not report.ladder.results


def test_single_samples_are_read_off_an_ordinary_update(audit):
    report = audit("legacy")
    read = {(r.attack, r.situation): r.score for r in report.ladder.results}
    assert read["first_linear", "as sent"] > 0.9
    assert read["curious", "malicious server"] > 0.9
    assert report.grade.letter == "E"


def test_a_planted_model_is_answered_by_the_apps_own_code(audit):
    report = audit("gradients")
    (active,) = [r for r in report.ladder.results if r.situation == "malicious server"]
    assert active.score > 0.99


def test_every_result_says_what_its_attacker_was_granted(audit):
    for name in ("legacy", "lora", "tabular"):
        results = audit(name).ladder.results
        assert results
        assert all(result.granted for result in results)


def test_tokens_are_read_off_embedding_rows(audit):
    (result,) = [r for r in audit("lora").ladder.results if r.target == "tokens"]
    assert result.score == 1.0


def test_the_audited_folder_stays_as_it_is(audit):
    def fingerprint():
        files = sorted(p for p in (APPS / "cnn_batchnorm").rglob("*") if p.suffix in (".py", ".toml", ".pt"))
        return [(p.name, hashlib.sha256(p.read_bytes()).hexdigest()) for p in files]

    before = fingerprint()
    audit("cnn_batchnorm")
    assert fingerprint() == before


def test_an_audit_repeats(audit):
    first, second = (audit("tabular", seconds=seconds).as_json() for seconds in (1.0, 1.01))
    for report in (first, second):
        report.pop("seconds")
        for result in report["results"]:
            result.pop("seconds")
    assert first == second


@pytest.mark.parametrize(("wanted", "nodes"), [(5, None), (3, 2)])
def test_a_quorum_that_cannot_be_met_is_refused(audit, wanted, nodes):
    with pytest.raises(ValueError, match="clients"):
        audit("quorum", f"wanted={wanted}", nodes=nodes)


def test_an_exception_of_a_client_is_named():
    def failing(message, context, call_next):
        raise RuntimeError("no such table")

    with pytest.raises(ValueError, match="no such table"):
        audit_app(APPS / "tabular", AuditOptions(mods=[failing], planted_runs=0))


def test_an_app_whose_clients_all_fail_is_refused_with_their_error():
    def failing(message, context, call_next):
        return Message(Error(7, "out of order"), reply_to=message)

    with pytest.raises(ValueError, match="out of order"):
        audit_app(APPS / "tabular", AuditOptions(mods=[failing], planted_runs=0))


def test_defenses_around_the_client_are_compared(audit):
    def silent(message, context, call_next):
        reply = call_next(message, context)
        for record in reply.content.array_records.values():
            for key, array in message.content.array_records["fitins.parameters"].items():
                record[key] = array
        return reply

    options = AuditOptions(attack_seconds=1.0, planted_runs=0)
    report = audit_app(APPS / "legacy", options, defenses={"none": (), "silent": (silent,)})
    none, hidden = report.variants
    assert none.leak > 0.9
    assert (hidden.leak or 0.0) < 0.1
    assert none.metric == "accuracy"
    assert none.bytes > 0
