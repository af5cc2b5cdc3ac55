import os
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from secure_rounds import make_terms

from fl_app.secagg import ProtocolError, Step, Terms
from fl_app.secagg.envelopes import ENVELOPE_BYTES, HeldShares
from fl_app.secagg.messages import (
    HEADER_BYTES,
    Advert,
    Delivery,
    Endorsement,
    Keyring,
    Masked,
    Request,
    Shares,
    Survivors,
    Unmasking,
)
from fl_app.secagg.shamir import SHARE_BYTES
from fl_app.secagg.stages import Finished, Holding, Offered, Peer, Shared, read_stage, write_stage

TERMS = make_terms([2, 3, 5, 8])
SIGNED = make_terms([2, 3, 5, 8], signed=True)


def some(count: int, size: int) -> tuple[bytes, ...]:
    return tuple(os.urandom(size) for _ in range(count))


def endorsements(*clients: int) -> tuple[Endorsement, ...]:
    return tuple(Endorsement(client, os.urandom(64)) for client in clients)


CASES = {
    "advert": (Advert(3, *some(2, 32)), TERMS, {"client": 3}),
    "signed advert": (Advert(3, *some(2, 32), os.urandom(64)), SIGNED, {"client": 3}),
    "keyring": (Keyring((Advert(2, *some(2, 32)), Advert(8, *some(2, 32)))), TERMS, {}),
    "signed keyring": (Keyring((Advert(2, *some(2, 32), os.urandom(64)),)), SIGNED, {}),
    "shares": (Shares(5, os.urandom(32), some(3, ENVELOPE_BYTES)), TERMS, {"client": 5, "holders": 3}),
    "delivery": (Delivery((2, 3, 8), some(3, ENVELOPE_BYTES)), TERMS, {}),
    "masked": (Masked(8, b"\x01\x02\x03"), TERMS, {"client": 8}),
    "survivors": (Survivors((2, 5, 8)), SIGNED, {}),
    "endorsement": (*endorsements(5), SIGNED, {"client": 5}),
    "request": (Request((2, 3, 8)), TERMS, {}),
    "signed request": (Request((2, 3, 8), endorsements(2, 8)), SIGNED, {}),
    "unmasking": (Unmasking(2, some(4, SHARE_BYTES)), TERMS, {"client": 2, "owners": 4}),
}


@pytest.fixture(params=CASES)
def case(request):
    message, terms, known = CASES[request.param]
    return message, terms, known, message.to_bytes(terms)


def test_a_message_survives_its_bytes(case):
    message, terms, known, blob = case
    assert type(message).from_bytes(blob, terms, **known) == message


def test_bytes_that_are_cut_or_go_on_are_refused(case):
    message, terms, known, blob = case
    for damaged in (*(blob[:length] for length in range(len(blob))), blob + b"\0"):
        with pytest.raises(ProtocolError, match=r"from (client|the server)"):
            type(message).from_bytes(damaged, terms, **known)


def test_a_changed_header_is_refused(case):
    message, terms, known, blob = case
    for place in range(HEADER_BYTES):
        damaged = blob[:place] + bytes([blob[place] ^ 1]) + blob[place + 1 :]
        with pytest.raises(ProtocolError):
            type(message).from_bytes(damaged, terms, **known)


def test_another_rounds_message_is_refused_as_old(case):
    message, terms, known, blob = case
    with pytest.raises(
        ProtocolError, match=r"expected round 2 attempt 0, got round 1 attempt 0: old, or repl"
    ):
        type(message).from_bytes(blob, replace(terms, round=2), **known)
    with pytest.raises(ProtocolError, match="expected round 1 attempt 1, got round 1 attempt 0"):
        type(message).from_bytes(blob, replace(terms, attempt=1), **known)


def test_a_message_under_other_terms_is_refused(case):
    message, terms, known, blob = case
    for other in (
        replace(terms, job=bytes(32)),
        replace(terms, run=bytes(16)),
        replace(terms, threshold=4),
    ):
        with pytest.raises(ProtocolError, match="another run, model, list of participants or setting"):
            type(message).from_bytes(blob, other, **known)


def test_another_kind_of_message_is_refused_by_name():
    blob = Survivors((2, 3, 5)).to_bytes(TERMS)
    with pytest.raises(
        ProtocolError, match=r"request from the server: expected .* kind request, got survivors"
    ):
        Request.from_bytes(blob, TERMS)


def test_a_client_cannot_speak_for_another():
    blob = Masked(8, b"abc").to_bytes(TERMS)
    with pytest.raises(ProtocolError, match="expected client 2 as its sender, got client 8"):
        Masked.from_bytes(blob, TERMS, client=2)


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=200), st.sampled_from(sorted(CASES)))
def test_garbage_behind_a_good_header_is_refused_or_is_a_message(content, name):
    message, terms, known = CASES[name]
    blob = message.to_bytes(terms)[:HEADER_BYTES] + content
    try:
        again = type(message).from_bytes(blob, terms, **known)
    except ProtocolError:
        return
    assert again.to_bytes(terms) == blob


@given(st.binary(max_size=200))
def test_garbage_is_no_terms_and_no_state(blob):
    with pytest.raises(ProtocolError):
        Terms.from_bytes(blob)
    with pytest.raises(ProtocolError):
        read_stage(blob)


def test_something_else_than_bytes_is_refused():
    with pytest.raises(ProtocolError, match="expected bytes, got NoneType"):
        Terms.from_bytes(None)


def test_a_count_is_checked_before_anything_is_read():
    blob = Survivors((2, 3, 5)).to_bytes(TERMS)
    forged = blob[:HEADER_BYTES] + (2**32 - 1).to_bytes(4, "little")
    with pytest.raises(ProtocolError, match="expected at most 4 entries, got 4294967295"):
        Survivors.from_bytes(forged, TERMS)


def test_lists_must_ascend():
    for clients in ((3, 2), (2, 2)):
        with pytest.raises(ProtocolError, match="expected ascending client ids"):
            Survivors.from_bytes(Survivors(clients).to_bytes(TERMS), TERMS)


# ---- terms


@given(
    st.sets(st.integers(0, 2**32 - 2), min_size=2, max_size=9),
    st.integers(0, 2**32 - 1),
    st.integers(0, 2**32 - 1),
    st.booleans(),
)
def test_terms_survive_their_bytes(clients, round, attempt, signed):
    terms = make_terms(sorted(clients), round=round, attempt=attempt, signed=signed)
    again = Terms.from_bytes(terms.to_bytes())
    assert again == terms
    assert again.digest == terms.digest


def test_every_single_bit_of_the_terms_changes_the_digest_or_is_refused():
    blob = TERMS.to_bytes()
    for place in range(8 * len(blob)):
        changed = (int.from_bytes(blob, "little") ^ 1 << place).to_bytes(len(blob), "little")
        try:
            terms = Terms.from_bytes(changed)
        except ProtocolError:
            continue
        assert terms.digest != TERMS.digest


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"threshold": 2}, r"threshold of 4 clients must be in \[3, 4\], got 2"),
        ({"threshold": 5}, r"threshold of 4 clients must be in \[3, 4\], got 5"),
        ({"participants": (3,)}, "expected 2 to 10000 participants, got 1"),
        ({"participants": (5, 3, 2, 8)}, "participants must ascend"),
        ({"participants": (2, 3, 5, 2**32 - 1)}, "a client id must be below"),
        ({"run": b"short"}, "run must have 16 bytes, got 5"),
        ({"job": b""}, "job must have 32 bytes, got 0"),
        ({"size": 0}, "size must be in"),
        ({"round": -1}, "round must be in"),
        ({"fixed_point": replace(TERMS.fixed_point, step=2.0**-6)}, "4 clients with 128 levels"),
    ],
)
def test_terms_that_protect_nobody_are_refused(change, complaint):
    with pytest.raises(ValueError, match=complaint):
        replace(TERMS, **change)


def test_a_client_refuses_such_terms_too():
    blob = TERMS.to_bytes()
    start = blob.index(TERMS.job) + 32
    lowered = blob[:start] + (2).to_bytes(4, "little") + blob[start + 4 :]
    with pytest.raises(ProtocolError, match=r"terms from the server: .*threshold of 4 clients"):
        Terms.from_bytes(lowered)


# ---- a client's memory

SECRETS = some(6, 32)
STAGES = [
    Offered(TERMS, 3, *SECRETS[:3]),
    Shared(
        TERMS,
        3,
        *SECRETS[:2],
        bytes(32),
        (2, 3, 8),
        {2: Peer(bytes(32), SECRETS[3]), 8: Peer(bytes(32), SECRETS[4])},
    ),
    Holding(
        TERMS,
        3,
        bytes(32),
        (2, 3, 5),
        {2: HeldShares(*some(2, 33)), 5: HeldShares(SECRETS[5] + b"x", bytes(33))},
    ),
    Holding(SIGNED, 3, bytes(32), (2, 3), {2: HeldShares(*some(2, 33))}, endorsed=(2, 3, 5)),
    Finished(TERMS, 3),
]


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_survives_its_bytes(stage):
    blob = write_stage(stage)
    assert read_stage(blob) == stage
    with pytest.raises(ProtocolError, match="the state of a client"):
        read_stage(blob + b"\0")


@pytest.mark.parametrize("shown", [*STAGES, Step(write_stage(STAGES[0]), b""), Unmasking(3, SECRETS)])
def test_no_repr_shows_a_secret(shown):
    text = f"{shown!r} {shown}"
    for secret in SECRETS:
        assert repr(secret)[2:-1] not in text
        assert secret.hex() not in text


def test_the_last_stage_holds_no_secret():
    blob = write_stage(Finished(TERMS, 3))
    assert len(blob) == len(TERMS.to_bytes()) + 14
