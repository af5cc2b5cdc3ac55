"""The attacker sees what the server saw, the strategy sees no truth, and truth needs the client's consent."""

import dataclasses
import logging

import pytest
import torch
from federations import SMALL, Wiretap
from flwr.app import RecordDict

from attacks.base import Reconstruction
from fl_app.adversary.passive import PassiveServer, Public, observe
from fl_app.client.client import Client
from fl_app.client_app import app
from fl_app.config.build import client_parts, server_parts
from fl_app.flower import InlineGrid
from fl_app.flower.held_tensor import hold
from fl_app.flower.tapped import TappedGrid
from fl_app.running import attack as leakage
from fl_app.running.federation import run_federation
from fl_app.seeding import generator_for
from fl_app.training import Job
from fl_app.types import Observation, RoundContext, Truth
from fl_app.wire.messages import AuditOrder, Order, Parcel


@pytest.fixture(autouse=True)
def _quiet():
    logging.getLogger("flwr").setLevel(logging.ERROR)


def audited(overrides: str = "", *, allow: bool = True, rounds=(2,), clients=(3,), **settings):
    text = f"{SMALL} {overrides}"
    parts = server_parts(text)
    grid = InlineGrid(app, 5, run_config={"overrides": text}, node_config={"allow-audit": allow})
    strategy, seen_by_strategy = parts.strategy, Wiretap()
    auditor = PassiveServer(
        rounds=rounds,
        clients=clients,
        model=lambda: (strategy.weights, strategy.buffers),
        read=strategy.see,
        public=parts.public,
        **settings,
    )
    strategy.start(
        grid=TappedGrid(TappedGrid(grid, auditor), seen_by_strategy),
        initial_arrays=hold(parts.model.state_dict()),
        num_rounds=parts.config["rounds"],
    )
    return parts, auditor, seen_by_strategy, text


def public(parts) -> Public:
    d = parts.dataset
    return Public(d.num_classes, d.in_shape, d.mean, d.std, parts.public.defense, True)


def test_only_the_chosen_round_and_client_are_seen():
    _, auditor, _, _ = audited()
    (sighting,) = auditor.sightings
    assert (sighting.order.round, sighting.order.client) == (2, 3)
    _, auditor, _, _ = audited(rounds="all", clients="all")
    assert len(auditor.sightings) == 10


def test_the_truth_is_what_the_raw_update_was_computed_from():
    parts, auditor, _, _ = audited("defense=dgp", rounds=(1,), batch_size=1)
    (sighting,) = auditor.sightings
    assert sighting.truth.inputs.shape == (1, 3, 32, 32)
    observation = observe(sighting, parts.model, public(parts), grant_labels=True, undefended=True)
    model = observation.model.train()
    mean, std = (torch.tensor(v).view(-1, 1, 1) for v in (parts.dataset.mean, parts.dataset.std))
    loss = torch.nn.functional.cross_entropy(
        model((sighting.truth.inputs - mean) / std), sighting.truth.labels
    )
    grads = torch.autograd.grad(loss, list(model.parameters()))
    for grad, update in zip(grads, observation.update.values(), strict=True):
        torch.testing.assert_close(grad, update, rtol=1e-4, atol=1e-6)


def test_the_defended_observation_is_the_raw_update_through_the_defense():
    parts, auditor, _, text = audited("defense=dgp defense.error_feedback=false", batch_size=1)
    (sighting,) = auditor.sightings
    transform = client_parts(text).defense.transform
    expected, _ = transform.apply(
        sighting.raw, transform.init(sighting.raw), RoundContext(2, 3, generator_for(0, 2, 3, "x"))
    )
    torch.testing.assert_close(sighting.update, expected, rtol=0, atol=0)
    observation = observe(sighting, parts.model, public(parts), grant_labels=False)
    for name, sent in observation.sent.items():
        assert torch.equal(sent, expected[name] != 0)
    assert observation.labels is None
    assert observation.batch_size == 1


def test_the_models_weights_are_those_before_the_round():
    _, auditor, _, _ = audited("defense=none", rounds=(2,))
    (sighting,) = auditor.sightings
    one_round, *_ = audited("defense=none rounds=1")
    torch.testing.assert_close(sighting.weights, one_round.strategy.weights, rtol=0, atol=0)


def test_a_strategy_never_sees_the_truth_nor_asks_for_it():
    _, _, seen, _ = audited(rounds="all", clients="all")
    assert len(seen.exchanges) == 10
    for sent, reply in seen.exchanges:
        assert "audit" not in sent.content
        assert "audit" not in reply.content


def test_an_audit_does_not_change_the_counted_bytes_nor_the_training():
    plain, *_ = audited(clients=())
    watched, *_ = audited(rounds="all", clients="all")
    assert [r.uplink_bytes for r in plain.strategy.records] == [
        r.uplink_bytes for r in watched.strategy.records
    ]
    torch.testing.assert_close(plain.strategy.weights, watched.strategy.weights, rtol=0, atol=0)


def test_without_consent_there_is_no_truth_and_a_note_says_so():
    _, auditor, _, _ = audited(allow=False)
    (sighting,) = auditor.sightings
    assert sighting.truth is None
    assert sighting.raw is None
    assert auditor.notes == ["client 3 does not allow audits: attacks on it are not scored"]


def test_a_client_refuses_an_audit_order_that_it_did_not_consent_to():
    client = Client(client_parts(SMALL), 2, 5, allow_audit=False)
    with pytest.raises(PermissionError, match="client 2: refuses the audit"):
        client.answer(Parcel(Order(1, 2, 0.1, "hash", 0), b"", audit=AuditOrder(truth=True)), RecordDict())


def test_an_observation_has_no_place_for_client_data_or_seeds():
    names = {field.name for field in dataclasses.fields(Observation)}
    assert names == {
        "model",
        "update",
        "sent",
        "lr",
        "local_steps",
        "local_batch_size",
        "batch_size",
        "num_classes",
        "input_shape",
        "mean",
        "std",
        "defense",
        "labels",
        "buffers",
        "training",
        "round",
        "locations",
        "broadcaster",
        "history",
        "same_batch",
        "length",
        "rewrites",
        "features",
        "manipulated",
        "selects",
        "cohort",
        "known",  # the attacker's own images, none of any client
        "defend",
        "rehearse",
    }
    assert not any(
        field.type == Truth or "Truth" in str(field.type) for field in dataclasses.fields(Observation)
    )


def test_the_number_of_tokens_is_told_only_where_it_is_granted():
    parts, auditor, _, _ = audited("strategy=fed_sgd", batch_size=2)
    (sighting,) = auditor.sightings
    labels = torch.tensor([[5, 9, 2, -1], [7, 2, -1, -1]])
    spoken = dataclasses.replace(sighting, truth=dataclasses.replace(sighting.truth, labels=labels))
    assert observe(spoken, parts.model, public(parts), grant_labels=True).length is None
    told = observe(spoken, parts.model, public(parts), grant_labels=False, grant_length=True)
    assert (told.length, told.labels) == (5, None)
    unknown = dataclasses.replace(sighting, truth=None)
    assert observe(unknown, parts.model, public(parts), grant_labels=False, grant_length=True).length is None


def test_fed_avg_deltas_say_how_many_steps_they_took():
    parts, auditor, _, _ = audited("strategy=fed_avg training.epochs=3", batch_size=2)
    (sighting,) = auditor.sightings
    observation = observe(sighting, parts.model, public(parts), grant_labels=True)
    assert (observation.local_steps, observation.batch_size) == (3, 2)
    assert len(sighting.truth.labels) == 2


def test_audits_keep_batch_norm_statistics_that_were_sent():
    parts, auditor, _, _ = audited("model=convnet rounds=2 bn=sync")
    (sighting,) = auditor.sightings
    observation = observe(sighting, parts.model, public(parts), grant_labels=True)
    assert set(observation.buffers) == set(dict(parts.model.named_buffers()))


def test_the_trainers_batch_is_the_audits():
    text = f"{SMALL} batch_size=4"
    parts = client_parts(text)
    trained = parts.trainer(
        server_parts(text).model,
        parts.data_of(0, 5),
        Job(1, 0.1, torch.Generator(), batch_size=2, keep_batches=True),
    )
    assert trained.samples == 2
    assert len(trained.batches[0].labels) == 2


def test_what_was_seen_in_round_one_stays_what_it_was_until_it_is_attacked(tmp_path, monkeypatch):
    """Evaluation after every round must not write into the weights that the attacker keeps."""
    seen: list[Observation] = []

    def remember(attacker, cases, observations):
        seen.extend(observations)
        blank = Reconstruction(images=torch.zeros(1, 3, 32, 32), labels=None, objective=0.0, notes=())
        return [blank for _ in observations]

    monkeypatch.setattr(leakage, "_run", remember)
    text = f"{SMALL} attack=ig rounds=4 evaluate_every=1 defense=dgp run_dir={tmp_path}"
    run_federation(InlineGrid(app, 5, run_config={"overrides": text}), text)
    raw = seen[1]
    assert raw.defense is None, "the second case is the update before the defense"
    initial = {name: p.detach() for name, p in server_parts(text).model.named_parameters()}
    torch.testing.assert_close(
        {name: p.detach() for name, p in raw.model.named_parameters()}, initial, rtol=0, atol=0
    )
