"""Client side of the protocol: one function per exchange, from state and message to state and reply.

No state lives in objects: the caller stores the state as bytes until the next message. If a call raises,
the old state stays valid. The caller must store the new state before it sends the reply: the server could
ask a client that forgot its answer for a second one.
"""

from __future__ import annotations

import hmac
import os
from collections.abc import Collection, Sequence
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from fl_app.secagg.envelopes import (
    UNOPENED,
    HeldShares,
    Passage,
    Secret,
    commit_to_seed,
    open_envelope,
    seal_shares,
)
from fl_app.secagg.errors import ProtocolError
from fl_app.secagg.graph import USUAL, Assumptions, Graph, is_private
from fl_app.secagg.identities import Identity, check_signature
from fl_app.secagg.keys import Agreement, Purpose, derive_key, make_private_key, pair_mask_key
from fl_app.secagg.masks import add_mask, remove_mask
from fl_app.secagg.messages import (
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
from fl_app.secagg.shamir import SECRET_BYTES, SHARE_BYTES, split_secret
from fl_app.secagg.stages import Finished, Holding, Offered, Peer, Shared, Stage, read_stage, write_stage
from fl_app.secagg.statements import advert_statement, hash_keyring, hash_transcript, survivors_statement
from fl_app.secagg.terms import FEWEST_CLIENTS, Terms

_Stage = TypeVar("_Stage", Offered, Shared, Holding)


class Step(NamedTuple):
    """New state of a client, and its message."""

    state: bytes
    reply: bytes

    def __repr__(self) -> str:
        """Show sizes only: the state holds secrets."""
        return f"Step(state of {len(self.state)} bytes, reply of {len(self.reply)} bytes)"


def offer(
    invitation: bytes,
    *,
    client: int,
    job: bytes | None = None,
    previous: bytes | None = None,
    min_clients: int = FEWEST_CLIENTS,
    identity: Identity | None = None,
    assumed: Assumptions = USUAL,
) -> Step:
    """Exchange 1: agree to the terms and offer new keys.

    ``job`` is the digest of the `Job` that this client knows of; None if the order comes with
    exchange 3, where `mask` checks it. ``previous`` is the last state of this client, of any round:
    an invitation that is not newer is a replay, and with ``identity`` so is one to another run.
    ``min_clients`` is the smallest cohort it accepts, ``assumed`` the collusion and dropout that a sparse
    graph must withstand.
    """
    terms = Terms.from_bytes(invitation)
    if not is_private(terms.neighbourhood, len(terms.participants), assumed):
        raise ProtocolError(
            f"client {client}: expected a graph that withstands a share of {assumed.colluding} of "
            f"{len(terms.participants)} clients, got {terms.neighbourhood}"
        )
    _check_terms(terms, client, min_clients, identity)
    if job is not None:
        check_job(terms, client, job)
    if previous is not None:
        _check_newer(terms, client, read_stage(previous).terms, one_run=identity is not None)
    stage = Offered(terms, client, make_private_key(), make_private_key(), os.urandom(SECRET_BYTES))
    advert = Advert(client, Agreement(stage.sealing_key).public, Agreement(stage.masking_key).public)
    if identity is not None:
        signature = identity.sign(advert_statement(terms, advert))
        advert = Advert(client, advert.sealing_key, advert.masking_key, signature)
    return Step(write_stage(stage), advert.to_bytes(terms))


def share(state: bytes, keyring: bytes, *, identity: Identity | None = None) -> Step:
    """Exchange 2: check the keys; give each client of the circle a share of this client's two secrets."""
    stage = _expect(Offered, state, "share")
    terms, client = stage.terms, stage.client
    ring = Keyring.from_bytes(keyring, terms)
    sealing = Agreement(stage.sealing_key)
    own = Advert(client, sealing.public, Agreement(stage.masking_key).public)
    signer = _identity_of(terms, client, identity)
    _check_keyring(terms, own, ring)
    keyring_hash = hash_keyring(terms, ring)
    circle = Graph(ring.clients, keyring_hash, terms.neighbourhood).circle(client)
    members = set(circle)
    adverts = [advert for advert in ring.adverts if advert.client in members]
    if signer is not None:
        _check_signatures(terms, client, adverts, signer)
    seed_shares = _split(stage.seed, terms, circle)
    key_shares = _split(stage.masking_key, terms, circle)
    envelopes, peers = [], {}
    for advert, seed_share, key_share in zip(adverts, seed_shares, key_shares, strict=True):
        common = sealing.agree(advert.client, advert.sealing_key)
        sealer = derive_key(common, Purpose.ENVELOPE, terms.digest, client, advert.client)
        opener = derive_key(common, Purpose.ENVELOPE, terms.digest, advert.client, client)
        passage = Passage(terms.digest, owner=client, holder=advert.client)
        envelopes.append(seal_shares(sealer, passage, HeldShares(seed_share, key_share)))
        peers[advert.client] = Peer(advert.masking_key, opener)
    reply = Shares(client, commit_to_seed(terms.digest, client, stage.seed), tuple(envelopes))
    after = Shared(terms, client, stage.masking_key, stage.seed, keyring_hash, ring.clients, peers)
    return Step(write_stage(after), reply.to_bytes(terms))


def mask(state: bytes, delivery: bytes, values: ArrayLike, *, job: bytes) -> Step:
    """Exchange 3: open the neighbours' envelopes; send the vector under a self mask and all pair masks.

    ``job`` is the digest of the `Job` that the vector was computed by. Real values are rounded and clamped;
    whole numbers are already multiples of the step and stay unchanged. If an envelope does not open, its
    owner loses a share and this client goes on: otherwise the owner could keep it out of every round.
    """
    stage = _expect(Shared, state, "mask")
    terms, client = stage.terms, stage.client
    check_job(terms, client, job)
    delivered = Delivery.from_bytes(delivery, terms)
    _check_list(terms, client, delivered.owners, stage.ring, "delivery")
    shares = _open_envelopes(stage, delivered)
    if np.size(values) != terms.size:
        raise ValueError(f"client {client}: mask: expected {terms.size} values, got {np.size(values)}")
    vector = np.asarray(values).reshape(-1)
    whole = np.issubdtype(vector.dtype, np.integer)
    words = terms.fixed_point.wrap(vector) if whole else terms.fixed_point.encode(vector)
    add_mask(words, derive_key(stage.seed, Purpose.SELF_MASK, terms.digest, client))
    masking = Agreement(stage.masking_key)
    for other in shares:
        if other != client:
            key = pair_mask_key(masking, stage.peers[other].masking_key, terms.digest, client, other)
            (add_mask if client < other else remove_mask)(words, key)
    transcript = hash_transcript(stage.keyring_hash, delivered.owners)
    after = Holding(terms, client, transcript, delivered.owners, shares)
    return Step(write_stage(after), Masked(client, terms.fixed_point.pack(words)).to_bytes(terms))


def endorse(state: bytes, survivors: bytes, *, identity: Identity) -> Step:
    """Exchange 4 of a signed round: sign the one survivor list that this client will answer for."""
    stage = _expect(Holding, state, "endorse")
    terms, client = stage.terms, stage.client
    signer = _identity_of(terms, client, identity)
    if signer is None:
        raise ProtocolError(f"client {client}: endorse: {terms.name} is not a signed round")
    if stage.endorsed:
        raise ProtocolError(
            f"client {client}: endorse: it has signed a survivor list of {terms.name} already"
        )
    listed = Survivors.from_bytes(survivors, terms).clients
    _check_survivors(stage, listed)
    signature = signer.sign(survivors_statement(terms, stage.transcript, listed))
    after = Holding(terms, client, stage.transcript, stage.owners, stage.shares, listed)
    return Step(write_stage(after), Endorsement(client, signature).to_bytes(terms))


def unmask(state: bytes, request: bytes, *, identity: Identity | None = None) -> Step:
    """The last exchange: give back shares of the survivors' seeds and of the others' masking keys, once."""
    stage = _expect(Holding, state, "unmask")
    terms, client = stage.terms, stage.client
    asked = Request.from_bytes(request, terms)
    _check_survivors(stage, asked.survivors)
    signer = _identity_of(terms, client, identity)
    if signer is not None:
        _check_endorsements(stage, asked, signer)
    survivors = set(asked.survivors)
    shares = tuple(
        held.of(Secret.SEED if owner in survivors else Secret.MASKING_KEY)
        for owner, held in stage.shares.items()
    )
    return Step(write_stage(Finished(terms, client)), Unmasking(client, shares).to_bytes(terms))


def terms_of(state: bytes) -> Terms:
    """Return the terms that the client accepted; their threshold determines its noise share."""
    return read_stage(state).terms


def _check_terms(terms: Terms, client: int, min_clients: int, identity: Identity | None) -> None:
    participants = terms.participants
    if client not in participants:
        raise ProtocolError(f"client {client}: expected to be a participant, got {list(participants)}")
    if len(participants) < min_clients:
        raise ProtocolError(
            f"client {client}: expected at least {min_clients} participants, got {len(participants)}"
        )
    signer = _identity_of(terms, client, identity)
    if signer is not None:
        strangers = sorted(set(participants) - set(signer.pinned))
        if strangers:
            raise ProtocolError(f"client {client}: participants without a pinned identity: {strangers}")


def _identity_of(terms: Terms, client: int, identity: Identity | None) -> Identity | None:
    # checked both ways: a server must not lure a client with identities into an unsigned round
    if (identity is not None) != terms.signed:
        has, wants = ("has" if identity is not None else "lacks"), ("a" if terms.signed else "no")
        raise ProtocolError(
            f"client {client}: it {has} pinned identities, but {terms.name} is {wants} signed round"
        )
    if identity is not None and identity.client != client:
        raise ProtocolError(f"client {client}: expected its own identity, got that of {identity.client}")
    return identity


def check_job(terms: Terms, client: int, job: bytes) -> None:
    """Refuse a job that differs from the one all participants of the round agreed to."""
    if not hmac.compare_digest(job, terms.job):
        raise ProtocolError(
            f"client {client}: expected the job that was agreed on for {terms.name}, "
            f"{terms.job.hex()[:16]}, got {job.hex()[:16]}"
        )


def _check_newer(terms: Terms, client: int, last: Terms, *, one_run: bool) -> None:
    if one_run and terms.run != last.run:  # else an active server could ask for every round twice
        raise ProtocolError(
            f"client {client}: expected an invitation to run {last.run.hex()}, as before, "
            f"got {terms.run.hex()}"
        )
    if terms.run == last.run and (terms.round, terms.attempt) <= (last.round, last.attempt):
        raise ProtocolError(
            f"client {client}: expected an invitation after {last.name}, got {terms.name}: old, or replayed"
        )


def _expect(kind: type[_Stage], state: bytes, call: str) -> _Stage:
    stage: Stage = read_stage(state)
    if not isinstance(stage, kind):
        raise ProtocolError(
            f"client {stage.client}: {call}: expected a client that has {kind.done}, "
            f"this one has {stage.done} in {stage.terms.name}"
        )
    return stage


def _check_keyring(terms: Terms, own: Advert, ring: Keyring) -> None:
    _check_list(terms, own.client, ring.clients, terms.participants, "keyring", least=terms.ring)
    keys: dict[bytes, int] = {}
    for advert in ring.adverts:
        for key in (advert.sealing_key, advert.masking_key):
            if key in keys:
                raise ProtocolError(
                    f"client {own.client}: keyring: clients {keys[key]} and {advert.client} show the same key"
                )
            keys[key] = advert.client
        shown = (advert.sealing_key, advert.masking_key)
        if advert.client == own.client and shown != (own.sealing_key, own.masking_key):
            raise ProtocolError(f"client {own.client}: keyring: its own keys were replaced")


def _check_signatures(terms: Terms, client: int, adverts: Sequence[Advert], signer: Identity) -> None:
    for advert in adverts:
        statement, what = advert_statement(terms, advert), f"client {client}: keyring"
        check_signature(signer.pinned, advert.client, statement, advert.signature, what)


def _check_list(
    terms: Terms,
    client: int,
    listed: Sequence[int],
    known: Collection[int],
    what: str,
    *,
    least: int | None = None,
) -> None:
    """Refuse a list with unknown clients, without this client, or below the threshold."""
    least = terms.threshold if least is None else least
    strangers = sorted(set(listed) - set(known))
    if strangers:
        raise ProtocolError(f"client {client}: {what}: unknown participants {strangers}")
    if client not in listed:
        raise ProtocolError(f"client {client}: {what}: expected to be in it, got {list(listed)}")
    if len(listed) < least:
        raise ProtocolError(f"client {client}: {what}: expected at least {least} clients, got {len(listed)}")


def _open_envelopes(stage: Shared, delivered: Delivery) -> dict[int, HeldShares]:
    """Return the shares of the circle; refuse the delivery if too few of its clients gave any."""
    terms, client, given = stage.terms, stage.client, set(delivered.owners)
    owners = [owner for owner in stage.peers if owner in given]
    if len(delivered.envelopes) != len(owners):
        raise ProtocolError(
            f"client {client}: delivery: expected {len(owners)} envelopes, got {len(delivered.envelopes)}"
        )
    shares: dict[int, HeldShares] = {}
    unopened: list[str] = []
    for owner, envelope in zip(owners, delivered.envelopes, strict=True):
        passage = Passage(terms.digest, owner, client)
        try:
            shares[owner] = open_envelope(stage.peers[owner].opener, passage, envelope)
        except ProtocolError as error:
            shares[owner] = UNOPENED
            unopened.append(str(error))
    opened = len(owners) - len(unopened)
    if opened < terms.quorum:
        raise ProtocolError(
            f"client {client}: delivery: expected at least {terms.quorum} envelopes that open, got {opened}"
            + (f": {unopened[0]}" if unopened else "")
        )
    return shares


def _check_survivors(stage: Holding, listed: Sequence[int]) -> None:
    """Refuse a survivor list with too few clients, in total or among this client's neighbours."""
    terms, client, what = stage.terms, stage.client, "survivor list"
    _check_list(terms, client, listed, stage.owners, what)
    near = len(stage.shares.keys() & set(listed))
    if near < terms.quorum:
        raise ProtocolError(
            f"client {client}: {what}: expected at least {terms.quorum} of its neighbours, got {near}"
        )


def _split(secret: bytes, terms: Terms, holders: Sequence[int]) -> list[bytes]:
    points = [terms.point(holder) for holder in holders]
    shares = split_secret(int.from_bytes(secret, "little"), threshold=terms.quorum, points=points)
    return [value.to_bytes(SHARE_BYTES, "little") for value in shares]


def _check_endorsements(stage: Holding, asked: Request, signer: Identity) -> None:
    terms, what = stage.terms, f"client {stage.client}: survivor list"
    if asked.survivors != stage.endorsed:
        raise ProtocolError(
            f"{what}: expected the one that it signed, {list(stage.endorsed)}, got {list(asked.survivors)}"
        )
    statement = survivors_statement(terms, stage.transcript, asked.survivors)
    for endorsement in asked.endorsements:
        if endorsement.client not in asked.survivors:
            raise ProtocolError(f"{what}: signed by client {endorsement.client}, who is not in it")
        check_signature(signer.pinned, endorsement.client, statement, endorsement.signature, what)
    if len(asked.endorsements) < terms.threshold:
        raise ProtocolError(
            f"{what}: expected at least {terms.threshold} signatures, got {len(asked.endorsements)}"
        )
