"""What a client or the server must not accept, and whom the refusal names."""

from dataclasses import replace

import numpy as np
import pytest
from secure_rounds import JOB, Cohort, make_terms, plain_sum, play

from fl_app.secagg import (
    ProtocolError,
    QuorumError,
    RoundFailed,
    SecureRound,
    create_identities,
    endorse,
    load_identity,
    mask,
    offer,
    share,
    terms_of,
    unmask,
)
from fl_app.secagg.envelopes import ENVELOPE_BYTES, UNOPENED, HeldShares, Passage, seal_shares
from fl_app.secagg.keys import Agreement, Purpose, derive_key, make_private_key
from fl_app.secagg.messages import Advert, Delivery, Keyring, Masked, Request, Shares, Survivors, Unmasking
from fl_app.secagg.shamir import SHARE_BYTES, split_secret
from fl_app.secagg.stages import read_stage

TERMS = make_terms(5)
ZERO_POINT = bytes(32)


@pytest.fixture
def cohort():
    return Cohort({client: np.array([0.5, -1.0, client]) for client in range(5)})


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("identities")
    create_identities(folder, range(5))
    return folder


@pytest.fixture
def signed_cohort(cohort, folder):
    return Cohort(cohort.vectors, {client: load_identity(folder, client) for client in range(5)})


# ---- exchange 1: the invitation


def test_an_invitation_for_others_is_refused():
    with pytest.raises(ProtocolError, match=r"client 9: expected to be a participant, got \[0, 1, 2, 3, 4\]"):
        offer(TERMS.to_bytes(), client=9)


def test_a_crowd_that_is_too_small_is_refused():
    with pytest.raises(ProtocolError, match="client 1: expected at least 6 participants, got 5"):
        offer(TERMS.to_bytes(), client=1, min_clients=6)


def test_an_old_or_replayed_invitation_is_refused():
    previous = offer(make_terms(5, round=3, attempt=1).to_bytes(), client=1).state
    for round, attempt in ((3, 1), (3, 0), (2, 5)):
        old = make_terms(5, round=round, attempt=attempt).to_bytes()
        with pytest.raises(
            ProtocolError, match=f"after round 3 attempt 1, got round {round} attempt {attempt}"
        ):
            offer(old, client=1, previous=previous)
    for fresh in (make_terms(5, round=3, attempt=2), make_terms(5, run=bytes(16))):
        offer(fresh.to_bytes(), client=1, previous=previous)


def test_a_client_with_identities_takes_part_in_one_run_only(folder):
    """Under another run's name a server could ask for every round twice."""
    identity = load_identity(folder, 1)
    previous = offer(make_terms(5, round=3, signed=True).to_bytes(), client=1, identity=identity).state
    for round in (1, 3, 4):
        other = make_terms(5, round=round, run=bytes(16), signed=True).to_bytes()
        with pytest.raises(ProtocolError, match=f"expected an invitation to run .*, got {bytes(16).hex()}"):
            offer(other, client=1, previous=previous, identity=identity)
    after = make_terms(5, round=4, signed=True).to_bytes()
    offer(after, client=1, previous=previous, identity=identity)


def test_another_model_is_refused_before_anything_is_sent():
    with pytest.raises(ProtocolError, match=r"client 1: expected the job that was agreed on .*, got ffff"):
        offer(TERMS.to_bytes(), client=1, job=b"\xff" * 32)


# ---- exchange 2: the keyring


@pytest.fixture
def ring(cohort):
    return Keyring.from_bytes(play(TERMS, cohort, until="share")[1], TERMS)


def fresh_advert(client: int) -> Advert:
    return Advert(client, *(Agreement(make_private_key()).public for _ in range(2)))


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda a: (*a[:4], fresh_advert(77)), r"client 1: keyring: unknown participants \[77\]"),
        (lambda a: a[:3], "client 1: keyring: expected at least 4 clients, got 3"),
        (lambda a: (a[0], *a[2:]), r"client 1: keyring: expected to be in it, got \[0, 2, 3, 4\]"),
        (lambda a: (a[0], fresh_advert(1), *a[2:]), "client 1: keyring: its own keys were replaced"),
        (lambda a: (*a[:4], replace(a[0], client=4)), "keyring: clients 0 and 4 show the same key"),
        (lambda a: (*a[:4], replace(a[4], sealing_key=ZERO_POINT)), "client 4: expected an X25519 key"),
    ],
)
def test_a_keyring_that_breaks_a_rule_is_refused(cohort, ring, change, complaint):
    with pytest.raises(ProtocolError, match=complaint):
        share(cohort.states[1], Keyring(change(ring.adverts)).to_bytes(TERMS))


def test_one_bad_key_costs_its_client_and_not_the_round(cohort):
    server = SecureRound(TERMS)
    replies = cohort.answer("offer", server.invite())
    replies[3] = Advert(3, ZERO_POINT, fresh_advert(3).masking_key).to_bytes(TERMS)
    ring = server.collect_adverts(replies)
    assert sorted(ring) == [0, 1, 2, 4]
    assert "client 3: expected an X25519 key" in server.refused[3]


def test_a_copied_key_costs_the_copy(cohort):
    server = SecureRound(TERMS)
    replies = cohort.answer("offer", server.invite())
    copied = Advert.from_bytes(replies[0], TERMS, client=0)
    replies[4] = replace(copied, client=4).to_bytes(TERMS)
    assert sorted(server.collect_adverts(replies)) == [0, 1, 2, 3]
    assert server.refused[4] == "advert from client 4: client 0 showed its key"


# ---- exchange 3: the envelopes


def deliver(cohort: Cohort, holder: int) -> Delivery:
    return Delivery.from_bytes(play(TERMS, cohort, until="mask")[holder], TERMS)


def with_envelope(delivery: Delivery, place: int, envelope: bytes) -> bytes:
    envelopes = list(delivery.envelopes)
    envelopes[place] = envelope
    return Delivery(delivery.owners, tuple(envelopes)).to_bytes(TERMS)


def unopened_by(cohort: Cohort, holder: int, delivery: bytes) -> list[int]:
    """Return whose envelopes a client could not open; it takes part all the same."""
    held = read_stage(mask(cohort.states[holder], delivery, np.zeros(3), job=JOB).state).shares
    return [owner for owner, shares in held.items() if shares == UNOPENED]


@pytest.mark.parametrize("byte", [0, 20, 33, 50, 120])
def test_an_altered_envelope_does_not_open(cohort, byte):
    delivery = deliver(cohort, 1)
    envelope = bytearray(delivery.envelopes[3])
    envelope[byte] ^= 1
    assert unopened_by(cohort, 1, delivery.to_bytes(TERMS)) == []
    assert unopened_by(cohort, 1, with_envelope(delivery, 3, bytes(envelope))) == [3]


def test_envelopes_cannot_be_exchanged(cohort):
    delivery = deliver(cohort, 1)
    assert unopened_by(cohort, 1, with_envelope(delivery, 3, delivery.envelopes[2])) == [3]


def test_below_a_quorum_of_envelopes_that_open_a_client_sends_nothing(cohort):
    delivery = deliver(cohort, 1)
    envelopes = (*delivery.envelopes[:2], *[bytes(ENVELOPE_BYTES)] * 2, delivery.envelopes[4])
    broken = replace(delivery, envelopes=envelopes)
    with pytest.raises(ProtocolError, match=r"at least 4 envelopes that open, got 3: .* of client 2 was"):
        mask(cohort.states[1], broken.to_bytes(TERMS), np.zeros(3), job=JOB)


def test_a_delivery_without_an_envelope_of_each_neighbour_is_refused(cohort):
    delivery = deliver(cohort, 1)
    short = replace(delivery, envelopes=delivery.envelopes[:4]).to_bytes(TERMS)
    with pytest.raises(ProtocolError, match="client 1: delivery: expected 5 envelopes, got 4"):
        mask(cohort.states[1], short, np.zeros(3), job=JOB)


@pytest.mark.parametrize("drops", [{}, {3: "mask"}])
def test_an_owner_cannot_keep_a_client_out_by_an_envelope_that_does_not_open(cohort, drops):
    server = SecureRound(make_terms(7))
    cohort = Cohort({client: np.array([0.5, -1.0, client]) for client in range(7)})
    messages = play(server.terms, cohort, until="mask", server=server)
    delivery = Delivery.from_bytes(messages[1], server.terms)
    envelopes = (*delivery.envelopes[:3], bytes(ENVELOPE_BYTES), *delivery.envelopes[4:])
    messages[1] = replace(delivery, envelopes=envelopes).to_bytes(server.terms)
    masked = cohort.answer("mask", messages, set(drops))
    total = server.collect_unmasking(cohort.answer("unmask", server.collect_masked(masked)))
    assert total.survivors == tuple(client for client in range(7) if client not in drops)
    assert total.words.tolist() == plain_sum(server.terms, cohort.vectors, total.survivors)
    assert server.complaints == {(1, 3)}
    assert not server.refused


def test_a_share_that_does_not_match_its_tag_is_not_kept(cohort):
    server = SecureRound(TERMS)
    ring = server.collect_adverts(cohort.answer("offer", server.invite()))
    owner = read_stage(cohort.states[3])
    public = Keyring.from_bytes(ring[1], TERMS).adverts[1].sealing_key
    key = derive_key(Agreement(owner.sealing_key).agree(1, public), Purpose.ENVELOPE, TERMS.digest, 3, 1)

    class LyingPassage(Passage):
        def tag(self, secret, share):
            return bytes(16)

    forged = seal_shares(key, LyingPassage(TERMS.digest, 3, 1), HeldShares(bytes(33), bytes(33)))
    deliveries = server.collect_shares(cohort.answer("share", ring))
    delivery = Delivery.from_bytes(deliveries[1], TERMS)
    assert unopened_by(cohort, 1, with_envelope(delivery, 3, forged)) == [3]


def test_clients_that_were_told_different_terms_cannot_read_each_other():
    """A server that tells client 0 another model, and rewrites what goes from one world to the other."""
    ours, theirs = make_terms(2), make_terms(2, job=bytes(32))
    steps = {0: offer(theirs.to_bytes(), client=0), 1: offer(ours.to_bytes(), client=1)}
    adverts = (
        Advert.from_bytes(steps[0].reply, theirs, client=0),
        Advert.from_bytes(steps[1].reply, ours, client=1),
    )
    with pytest.raises(ProtocolError, match="keyring from the server: expected the terms"):
        share(steps[0].state, Keyring(adverts).to_bytes(ours))
    steps = {
        0: share(steps[0].state, Keyring(adverts).to_bytes(theirs)),
        1: share(steps[1].state, Keyring(adverts).to_bytes(ours)),
    }
    from_0 = Shares.from_bytes(steps[0].reply, theirs, client=0, holders=2).envelopes[1]
    from_1 = Shares.from_bytes(steps[1].reply, ours, client=1, holders=2).envelopes[1]
    with pytest.raises(ProtocolError, match=r"client 1: the envelope of client 0 .* terms than this client"):
        mask(steps[1].state, Delivery((0, 1), (from_0, from_1)).to_bytes(ours), np.zeros(3), job=JOB)


def test_the_model_that_came_must_be_the_model_agreed_on(cohort):
    delivery = deliver(cohort, 1).to_bytes(TERMS)
    with pytest.raises(ProtocolError, match=r"client 1: expected the job that was agreed on for round 1"):
        mask(cohort.states[1], delivery, np.zeros(3), job=bytes(32))


@pytest.mark.parametrize(
    ("owners", "complaint"),
    [
        ((0, 1, 2), "client 1: delivery: expected at least 4 clients, got 3"),
        ((0, 2, 3, 4), "client 1: delivery: expected to be in it"),
        ((0, 1, 2, 9), r"client 1: delivery: unknown participants \[9\]"),
    ],
)
def test_a_delivery_from_too_few_or_unknown_clients_is_refused(cohort, owners, complaint):
    envelopes = deliver(cohort, 1).envelopes
    blob = Delivery(owners, envelopes[: len(owners)]).to_bytes(TERMS)
    with pytest.raises(ProtocolError, match=complaint):
        mask(cohort.states[1], blob, np.zeros(3), job=JOB)


def test_a_vector_of_another_size_is_an_error_that_tells_no_value(cohort):
    delivery = deliver(cohort, 1).to_bytes(TERMS)
    with pytest.raises(ValueError, match="client 1: mask: expected 3 values, got 4"):
        mask(cohort.states[1], delivery, np.zeros(4), job=JOB)


# ---- the last exchange: unmasking


@pytest.fixture
def asked(cohort):
    """A cohort whose clients have sent their vectors, client 4 alone has not."""
    play(TERMS, cohort, until="unmask", drops={4: "mask"})
    return cohort


@pytest.mark.parametrize(
    ("survivors", "complaint"),
    [
        ((0, 1, 2), "client 1: survivor list: expected at least 4 clients, got 3"),
        ((0, 1, 2, 9), r"client 1: survivor list: unknown participants \[9\]"),
        ((0, 2, 3, 4), "client 1: survivor list: expected to be in it"),
        ((), "client 1: survivor list: expected to be in it"),
    ],
)
def test_a_survivor_list_that_breaks_a_rule_is_refused(asked, survivors, complaint):
    with pytest.raises(ProtocolError, match=complaint):
        unmask(asked.states[1], Request(survivors).to_bytes(TERMS))


def test_a_client_answers_for_one_survivor_list_and_never_gives_both_shares(asked):
    """The server asks for client 4's masking key, then for its seed."""
    step = unmask(asked.states[1], Request((0, 1, 2, 3)).to_bytes(TERMS))
    for survivors in ((0, 1, 2, 3, 4), (0, 1, 2, 3)):
        with pytest.raises(ProtocolError, match=r"client 1: unmask: .* answered its one unmasking request"):
            unmask(step.state, Request(survivors).to_bytes(TERMS))


def test_an_answer_holds_one_of_the_two_shares_of_every_client(asked):
    held = read_stage(asked.states[1]).shares
    step = unmask(asked.states[1], Request((0, 1, 2, 3)).to_bytes(TERMS))
    for owner, shares in held.items():
        assert (shares.seed in step.reply) == (owner != 4)
        assert (shares.masking_key in step.reply) == (owner == 4)


def test_a_client_that_was_left_out_of_the_shares_is_no_survivor(cohort):
    play(TERMS, cohort, until="unmask", drops={4: "share"})
    with pytest.raises(ProtocolError, match=r"client 1: survivor list: unknown participants \[4\]"):
        unmask(cohort.states[1], Request((0, 1, 2, 3, 4)).to_bytes(TERMS))


def test_a_wrong_share_is_refused_by_its_holders_name_and_the_rest_suffices(cohort):
    server = SecureRound(TERMS)
    replies = cohort.answer("unmask", play(TERMS, cohort, until="unmask", server=server))
    answer = Unmasking.from_bytes(replies[2], TERMS, client=2, owners=5)
    shares = (*answer.shares[:3], bytes(SHARE_BYTES), answer.shares[4])
    replies[2] = Unmasking(2, shares).to_bytes(TERMS)
    total = server.collect_unmasking(replies)
    assert server.refused == {
        2: "unmasking from client 2: a wrong share of the self mask's seed of client 3 "
        "(held by client 2): its tag does not match"
    }
    assert total.words.tolist() == plain_sum(TERMS, cohort.vectors, range(5))


def test_too_many_wrong_shares_fail_the_round_with_all_names(cohort):
    server = SecureRound(TERMS)
    replies = cohort.answer("unmask", play(TERMS, cohort, until="unmask", server=server))
    for client in (0, 3):
        replies[client] = Unmasking(client, (bytes(SHARE_BYTES),) * 5).to_bytes(TERMS)
    with pytest.raises(
        QuorumError, match=r"got 3: \[1, 2, 4\].* from client 0: a wrong.* from client 3: a wrong"
    ):
        server.collect_unmasking(replies)


@pytest.mark.parametrize(("drops", "secret"), [({}, "self mask's seed"), ({3: "mask"}, "masking key")])
def test_an_owner_whose_shares_give_another_secret_is_named(cohort, monkeypatch, drops, secret):
    server = SecureRound(TERMS)
    ring = server.collect_adverts(cohort.answer("offer", server.invite()))
    replies = cohort.answer("share", {client: ring[client] for client in (0, 1, 2, 4)})
    with monkeypatch.context() as patch:
        patch.setattr("fl_app.secagg.client.split_secret", lambda secret, **how: split_secret(1, **how))
        replies |= cohort.answer("share", {3: ring[3]})
    requests = server.collect_masked(cohort.answer("mask", server.collect_shares(replies), set(drops)))
    with pytest.raises(RoundFailed, match=f"client 3 handed out do not give the {secret}"):
        server.collect_unmasking(cohort.answer("unmask", requests))


# ---- the order of things


def test_a_client_refuses_exchanges_out_of_order(cohort):
    messages = {call: play(make_terms(5), Cohort(cohort.vectors), until=call) for call in ("share", "mask")}
    state = offer(TERMS.to_bytes(), client=1).state
    with pytest.raises(ProtocolError, match="client 1: mask: expected a client that has shared its secrets"):
        mask(state, messages["mask"][1], np.zeros(3), job=JOB)
    with pytest.raises(ProtocolError, match=r"client 1: unmask: expected .* sent its masked vector"):
        unmask(state, Request((0, 1, 2, 3)).to_bytes(TERMS))
    play(TERMS, cohort, until="mask")
    with pytest.raises(ProtocolError, match="client 1: share: expected a client that has offered its keys"):
        share(cohort.states[1], messages["share"][1])


def test_a_refused_call_leaves_the_client_ready_for_the_right_one(asked):
    with pytest.raises(ProtocolError):
        unmask(asked.states[1], b"garbage")
    unmask(asked.states[1], Request((0, 1, 2, 3)).to_bytes(TERMS))


def test_a_server_refuses_calls_out_of_order():
    server = SecureRound(TERMS)
    with pytest.raises(ValueError, match="round 1 attempt 0: expected invite, got collect_masked"):
        server.collect_masked({})
    server.invite()
    with pytest.raises(ValueError, match="expected collect_adverts, got invite"):
        server.invite()


@pytest.mark.parametrize(
    ("reply", "complaint"),
    [
        (lambda good: b"", "masked from client 2: expected"),
        (lambda good: None, "masked from client 2: expected bytes, got NoneType"),
        (lambda good: good[:-1], "masked from client 2: expected 3 more bytes, got 2"),
        (lambda good: Masked(3, b"abc").to_bytes(TERMS), "expected client 2 as its sender, got client 3"),
        (
            lambda good: Masked(2, b"abc").to_bytes(make_terms(5, round=0)),
            "got round 0 attempt 0: old, or repl",
        ),
        (lambda good: Masked(2, b"abc").to_bytes(make_terms(5, job=bytes(32))), "another run, model"),
    ],
)
def test_a_bad_vector_costs_its_client_and_not_the_round(cohort, reply, complaint):
    server = SecureRound(TERMS)
    replies = cohort.answer("mask", play(TERMS, cohort, until="mask", server=server))
    replies[2] = reply(replies[2])
    total = server.collect_unmasking(cohort.answer("unmask", server.collect_masked(replies)))
    assert total.survivors == (0, 1, 3, 4)
    assert total.words.tolist() == plain_sum(TERMS, cohort.vectors, total.survivors)
    assert complaint in server.refused[2]


def test_a_replayed_vector_of_the_last_round_is_refused(cohort):
    old = cohort.answer("mask", play(TERMS, cohort, until="mask"))
    terms = make_terms(5, round=2)
    server = SecureRound(terms)
    replies = cohort.answer("mask", play(terms, cohort, until="mask", server=server))
    server.collect_masked(replies | {0: old[0]})
    assert "client 0: expected round 2 attempt 0, got round 1 attempt 0" in server.refused[0]


def test_an_unknown_client_is_left_out_by_name(cohort):
    server = SecureRound(TERMS)
    replies = cohort.answer("offer", server.invite())
    stranger = offer(make_terms(10).to_bytes(), client=9).reply
    assert sorted(server.collect_adverts(replies | {9: stranger})) == [0, 1, 2, 3, 4]
    assert server.refused == {9: "client 9: not expected in the exchange of keys: unknown or dropped out"}


def test_who_dropped_out_does_not_come_back(cohort):
    server = SecureRound(TERMS)
    ring = server.collect_adverts(cohort.answer("offer", server.invite()))
    shares = cohort.answer("share", ring)
    server.collect_shares({client: shares[client] for client in (0, 1, 2, 3)})
    masked = Masked(4, b"abc").to_bytes(TERMS)
    with pytest.raises(QuorumError, match="client 4: not expected in the exchange of masked vectors"):
        server.collect_masked({4: masked})


def test_a_client_reads_its_threshold_from_what_it_agreed_to(cohort):
    play(TERMS, cohort, until="mask")
    assert terms_of(cohort.states[1]) == TERMS
    assert terms_of(cohort.states[1]).threshold == 4


# ---- signed rounds: an active server

SIGNED = make_terms(5, signed=True)


def test_a_client_with_identities_is_not_talked_out_of_them(folder):
    with pytest.raises(ProtocolError, match=r"client 1: it has pinned identities, but .* is no signed round"):
        offer(TERMS.to_bytes(), client=1, identity=load_identity(folder, 1))
    with pytest.raises(ProtocolError, match=r"client 1: it lacks pinned identities, .* is a signed round"):
        offer(SIGNED.to_bytes(), client=1)
    with pytest.raises(ProtocolError, match="client 1: expected its own identity, got that of 2"):
        offer(SIGNED.to_bytes(), client=1, identity=load_identity(folder, 2))


def test_an_invented_client_is_refused(folder):
    crowd = make_terms(7, signed=True)
    with pytest.raises(ProtocolError, match=r"client 1: participants without a pinned identity: \[5, 6\]"):
        offer(crowd.to_bytes(), client=1, identity=load_identity(folder, 1))


def test_a_server_cannot_put_its_own_key_in_place_of_a_clients(signed_cohort):
    ring = Keyring.from_bytes(play(SIGNED, signed_cohort, until="share")[1], SIGNED)
    for forged in (
        replace(fresh_advert(3), signature=ring.adverts[3].signature),
        replace(fresh_advert(3), signature=bytes(64)),
    ):
        blob = Keyring((*ring.adverts[:3], forged, ring.adverts[4])).to_bytes(SIGNED)
        with pytest.raises(
            ProtocolError, match="client 1: keyring: the signature of client 3 does not verify"
        ):
            share(signed_cohort.states[1], blob, identity=signed_cohort.identities[1])


def test_an_advert_of_an_earlier_round_is_refused(signed_cohort):
    old = Keyring.from_bytes(play(SIGNED, signed_cohort, until="share")[1], SIGNED)
    later = make_terms(5, signed=True, round=2)
    ring = Keyring.from_bytes(play(later, signed_cohort, until="share")[1], later)
    blob = Keyring((*ring.adverts[:3], old.adverts[3], ring.adverts[4])).to_bytes(later)
    with pytest.raises(ProtocolError, match="client 1: keyring: the signature of client 3 does not verify"):
        share(signed_cohort.states[1], blob, identity=signed_cohort.identities[1])


@pytest.fixture
def endorsing(signed_cohort):
    server = SecureRound(SIGNED)
    return signed_cohort, server, play(SIGNED, signed_cohort, until="endorse", server=server)


def test_a_client_signs_one_survivor_list_a_round(endorsing):
    cohort, _, lists = endorsing
    cohort.answer("endorse", lists)
    with pytest.raises(ProtocolError, match="client 1: endorse: it has signed a"):
        endorse(cohort.states[1], Survivors((0, 1, 2, 3)).to_bytes(SIGNED), identity=cohort.identities[1])


def test_a_server_that_shows_two_survivor_lists_gets_no_answer(endorsing):
    """Clients 0 to 2 are told that all survived, the others that client 0 did not."""
    cohort, server, lists = endorsing
    other = Survivors((1, 2, 3, 4)).to_bytes(SIGNED)
    replies = cohort.answer("endorse", lists | {3: other, 4: other})
    requests = server.collect_endorsements(replies)
    with pytest.raises(
        ProtocolError, match="client 1: survivor list: the signature of client 3 does not ver"
    ):
        unmask(cohort.states[1], requests[1], identity=cohort.identities[1])
    with pytest.raises(
        ProtocolError, match=r"client 3: survivor list: expected the one that it signed, \[1, 2"
    ):
        unmask(cohort.states[3], requests[3], identity=cohort.identities[3])


def test_the_server_names_who_signed_something_else(signed_cohort):
    server = SecureRound(SIGNED, pinned=signed_cohort.identities[0].pinned)
    lists = play(SIGNED, signed_cohort, until="endorse", server=server)
    other = Survivors((0, 1, 2, 3)).to_bytes(SIGNED)
    server.collect_endorsements(signed_cohort.answer("endorse", lists | {3: other}))
    assert server.refused == {3: "endorsement from client 3: the signature of client 3 does not verify"}


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda e: e[:3], "expected at least 4 signatures, got 3"),
        (lambda e: (), "expected at least 4 signatures, got 0"),
        (lambda e: (*e[:3], replace(e[3], signature=bytes(64))), "the signature of client 3 does not"),
        (lambda e: (*e[:4], replace(e[4], client=9)), "signed by client 9, who is not in it"),
    ],
)
def test_signatures_that_are_too_few_or_wrong_are_refused(endorsing, change, complaint):
    cohort, server, lists = endorsing
    requests = server.collect_endorsements(cohort.answer("endorse", lists))
    request = Request.from_bytes(requests[1], SIGNED)
    forged = replace(request, endorsements=change(request.endorsements)).to_bytes(SIGNED)
    with pytest.raises(ProtocolError, match=f"client 1: survivor list: {complaint}"):
        unmask(cohort.states[1], forged, identity=cohort.identities[1])


def test_a_signed_client_does_not_unmask_what_it_never_signed(endorsing):
    cohort, _, _ = endorsing
    with pytest.raises(
        ProtocolError, match=r"client 1: survivor list: expected the one that it signed, \[\]"
    ):
        unmask(cohort.states[1], Request((0, 1, 2, 3, 4)).to_bytes(SIGNED), identity=cohort.identities[1])


def test_an_unsigned_round_has_nothing_to_endorse(asked):
    with pytest.raises(ProtocolError, match="client 1: endorse: round 1 attempt 0 is not a signed round"):
        endorse(asked.states[1], Survivors((0, 1, 2, 3)).to_bytes(TERMS), identity=None)
