"""Server side of the protocol: the next messages from the replies received.

The server refuses a reply that breaks a rule, and its sender counts as dropped out. Below the threshold the
round fails with an error that lists the remaining clients, and there is no sum.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from fl_app.secagg.envelopes import UNOPENED, Passage, Secret, check_share, commit_to_seed
from fl_app.secagg.errors import ProtocolError, QuorumError, RoundFailed, SpoiledSum
from fl_app.secagg.fixed_point import Words
from fl_app.secagg.graph import Graph
from fl_app.secagg.identities import Pinned, check_signature
from fl_app.secagg.keys import Agreement, Purpose, check_public_key, derive_key, pair_mask_key
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
from fl_app.secagg.shamir import SECRET_BYTES, join_shares, weigh_points
from fl_app.secagg.statements import advert_statement, hash_keyring, hash_transcript, survivors_statement
from fl_app.secagg.terms import Terms

_Message = TypeVar("_Message")


@dataclass(frozen=True)
class SecureSum:
    """Sum of the survivors' vectors, with the list of survivors."""

    terms: Terms
    survivors: tuple[int, ...]
    words: Words
    """The exact sum modulo 2^bits."""

    def values(self) -> NDArray[np.float64]:
        """Return the sum as real numbers; the caller divides."""
        return self.terms.fixed_point.decode(self.words)


class SecureRound:
    """One attempt at one round: `invite`, then one ``collect_`` call per exchange, in order.

    Replies are keyed by the client id of the transport, not by the one in the message.
    """

    def __init__(self, terms: Terms, *, pinned: Pinned | None = None) -> None:
        self.terms = terms
        self.refused: dict[int, str] = {}
        """Reason of the last refusal, by client."""
        self.proven: set[int] = set()
        """Clients whose shares contradict their own announcement, which no holder can forge."""
        self.complaints: set[tuple[int, int]] = set()
        """Holder and owner of each envelope that its holder reports as unopened: one of the two lies."""
        self.unmasking_begun = False
        """True if clients may have given shares: then this attempt counts as a release, even if it fails."""
        self._pinned = pinned if terms.signed else None
        self._next = "invite"
        self._keyring_hash = b""
        self._graph = Graph((), b"", None)
        self._adverts: dict[int, Advert] = {}
        self._keys: dict[bytes, int] = {}
        self._shares: dict[int, Shares] = {}
        self._envelopes: dict[tuple[int, int], bytes] = {}
        self._survivors: tuple[int, ...] = ()
        self._asked: dict[int, Secret] = {}
        self._total: Words = np.zeros(0, terms.fixed_point.word)

    def invite(self) -> dict[int, bytes]:
        """Return the terms for every participant; it answers with `fl_app.secagg.offer`."""
        self._enter("invite", then="collect_adverts")
        return dict.fromkeys(self.terms.participants, self.terms.to_bytes())

    def collect_adverts(self, replies: Mapping[int, bytes]) -> dict[int, bytes]:
        """End exchange 1, begin exchange 2: all keys go to all clients; answer: `fl_app.secagg.share`."""
        self._enter("collect_adverts", then="collect_shares")
        self._adverts = self._read(
            "keys", replies, self.terms.participants, self._read_advert, least=self.terms.ring
        )
        ring = Keyring(tuple(self._adverts.values()))
        self._keyring_hash = hash_keyring(self.terms, ring)
        self._graph = Graph(ring.clients, self._keyring_hash, self.terms.neighbourhood)
        return dict.fromkeys(self._adverts, ring.to_bytes(self.terms))

    def collect_shares(self, replies: Mapping[int, bytes]) -> dict[int, bytes]:
        """End exchange 2, begin exchange 3: send the neighbours' envelopes; answer: `fl_app.secagg.mask`."""
        self._enter("collect_shares", then="collect_masked")
        self._shares = self._read("shares", replies, self._adverts, self._read_shares)
        self._envelopes = {
            (owner, holder): envelope
            for owner, given in self._shares.items()
            for holder, envelope in zip(self._graph.circle(owner), given.envelopes, strict=True)
        }
        owners = tuple(self._shares)
        return {
            holder: Delivery(
                owners, tuple(self._envelopes[owner, holder] for owner in self._owners(holder))
            ).to_bytes(self.terms)
            for holder in owners
        }

    def collect_masked(self, replies: Mapping[int, bytes]) -> dict[int, bytes]:
        """End exchange 3: fix the survivors.

        Answer: `fl_app.secagg.endorse` in a signed round, else `fl_app.secagg.unmask`.
        """
        signed = self.terms.signed
        self._enter("collect_masked", then="collect_endorsements" if signed else "collect_unmasking")
        self._total = np.zeros(self.terms.size, self.terms.fixed_point.word)
        self._survivors = tuple(self._read("masked vectors", replies, self._shares, self._add_masked))
        alive = set(self._survivors)
        self._asked = {owner: Secret.SEED if owner in alive else Secret.MASKING_KEY for owner in self._shares}
        if signed:
            return dict.fromkeys(self._survivors, Survivors(self._survivors).to_bytes(self.terms))
        return self._request(())

    def collect_endorsements(self, replies: Mapping[int, bytes]) -> dict[int, bytes]:
        """End exchange 4 of a signed round: send all signatures; answer: `fl_app.secagg.unmask`."""
        self._enter("collect_endorsements", then="collect_unmasking")
        endorsements = self._read("signatures", replies, self._survivors, self._read_endorsement)
        return self._request(tuple(endorsements.values()))

    def collect_unmasking(self, replies: Mapping[int, bytes]) -> SecureSum:
        """Take the masks off the sum, with the shares of the survivors."""
        self._enter("collect_unmasking", then="nothing more")
        answers = self._read("unmasking shares", replies, self._survivors, self._read_unmasking)
        secrets = self._recover(answers)
        for client in self._survivors:
            remove_mask(
                self._total, derive_key(secrets[client], Purpose.SELF_MASK, self.terms.digest, client)
            )
        for client, asked in self._asked.items():
            if asked is Secret.MASKING_KEY:
                self._remove_pair_masks(client, Agreement(secrets[client]))
        grid = self.terms.fixed_point
        self._total &= self._total.dtype.type((1 << grid.bits) - 1)
        # bound of an honest sum; a liar's random words exceed it in half of all entries or more
        most = len(self._survivors) * grid.levels
        outside = int((np.abs(grid.signed(self._total)) > most).sum())
        if outside:
            raise SpoiledSum(
                f"secure aggregation, {self.terms.name}: {outside} of {self.terms.size} entries of the sum "
                f"are beyond what {len(self._survivors)} clients may send: one lies, and masks hide which",
                self._survivors,
            )
        return SecureSum(self.terms, self._survivors, self._total)

    def _enter(self, call: str, *, then: str) -> None:
        if self._next != call:
            raise ValueError(f"SecureRound, {self.terms.name}: expected {self._next}, got {call}")
        self._next = then

    def _read(
        self,
        exchange: str,
        replies: Mapping[int, bytes],
        expected: tuple[int, ...] | Mapping[int, object],
        read: Callable[[int, bytes], _Message],
        *,
        least: int | None = None,
    ) -> dict[int, _Message]:
        """Return the valid replies by client, ascending; refuse the others, and fail below the threshold."""
        least = self.terms.threshold if least is None else least
        refused = {
            client: f"client {client}: not expected in the exchange of {exchange}: unknown or dropped out"
            for client in sorted(set(replies) - set(expected))
        }
        good: dict[int, _Message] = {}
        for client in sorted(set(expected) & set(replies)):
            try:
                good[client] = read(client, replies[client])
            except ProtocolError as error:
                refused[client] = str(error)
        self.refused |= refused
        if len(good) < least:
            self._next = "nothing more: the round has failed"
            raise QuorumError(
                f"secure aggregation, {self.terms.name}, exchange of {exchange}",
                needed=least,
                present=good,
                missing=set(expected) - set(replies),
                refused=refused,
            )
        return good

    def _read_advert(self, client: int, blob: bytes) -> Advert:
        advert = Advert.from_bytes(blob, self.terms, client=client)
        if self._pinned is not None:
            statement = advert_statement(self.terms, advert)
            check_signature(self._pinned, client, statement, advert.signature, f"advert from client {client}")
        # every client would refuse the whole keyring for a key that is no key, or that two clients show
        for key in (advert.sealing_key, advert.masking_key):
            check_public_key(client, key)
            if key in self._keys:
                raise ProtocolError(f"advert from client {client}: client {self._keys[key]} showed its key")
            self._keys[key] = client
        return advert

    def _read_shares(self, client: int, blob: bytes) -> Shares:
        return Shares.from_bytes(blob, self.terms, client=client, holders=len(self._graph.circle(client)))

    def _owners(self, holder: int) -> list[int]:
        """Return the owners of the shares that a client holds: those of its circle that gave any."""
        return [owner for owner in self._graph.circle(holder) if owner in self._shares]

    def _add_masked(self, client: int, blob: bytes) -> None:
        masked = Masked.from_bytes(blob, self.terms, client=client)
        self._total += self.terms.fixed_point.unpack(masked.packed)

    def _request(self, endorsements: tuple[Endorsement, ...]) -> dict[int, bytes]:
        self.unmasking_begun = True
        request = Request(self._survivors, endorsements).to_bytes(self.terms)
        return dict.fromkeys(self._survivors, request)

    def _read_endorsement(self, client: int, blob: bytes) -> Endorsement:
        endorsement = Endorsement.from_bytes(blob, self.terms, client=client)
        if self._pinned is not None:
            transcript = hash_transcript(self._keyring_hash, tuple(self._shares))
            statement = survivors_statement(self.terms, transcript, self._survivors)
            what = f"endorsement from client {client}"
            check_signature(self._pinned, client, statement, endorsement.signature, what)
        return endorsement

    def _read_unmasking(self, client: int, blob: bytes) -> dict[int, bytes]:
        """Return the shares that a client has, by owner; note which envelopes it could not open."""
        owners = self._owners(client)
        unmasking = Unmasking.from_bytes(blob, self.terms, client=client, owners=len(owners))
        given = {
            owner: share
            for owner, share in zip(owners, unmasking.shares, strict=True)
            if share != UNOPENED.of(self._asked[owner])
        }
        for owner, share in given.items():
            passage = Passage(self.terms.digest, owner=owner, holder=client)
            what = f"unmasking from client {client}"
            check_share(passage, self._envelopes[owner, client], self._asked[owner], share, what)
        self.complaints |= {(client, owner) for owner in owners if owner not in given}
        return given

    def _recover(self, answers: Mapping[int, Mapping[int, bytes]]) -> dict[int, bytes]:
        """Return the seed of every survivor and the masking key of everyone else who gave shares."""
        secrets = {}
        quorum, weights = self.terms.quorum, functools.lru_cache(maxsize=1)(self._weigh)
        for owner in self._shares:
            holders = [
                holder
                for holder in self._graph.circle(owner)
                if holder in answers and owner in answers[holder]
            ]
            if len(holders) < quorum:
                raise QuorumError(
                    f"secure aggregation, {self.terms.name}, {self._asked[owner].value} of client {owner}",
                    needed=quorum,
                    present=holders,
                    refused=self.refused,
                )
            holders = holders[:quorum]
            shares = [int.from_bytes(answers[holder][owner], "little") for holder in holders]
            secrets[owner] = self._check_secret(owner, join_shares(shares, weights(tuple(holders))))
        return secrets

    def _weigh(self, holders: tuple[int, ...]) -> list[int]:
        return weigh_points([self.terms.point(holder) for holder in holders])

    def _check_secret(self, owner: int, secret: int) -> bytes:
        """Refuse a secret that does not match the hash or public key that its owner showed."""
        asked = self._asked[owner]
        if secret < 1 << (8 * SECRET_BYTES):
            value = secret.to_bytes(SECRET_BYTES, "little")
            if asked is Secret.SEED:
                commitment = commit_to_seed(self.terms.digest, owner, value)
                right = commitment == self._shares[owner].seed_commitment
            else:
                right = Agreement(value).public == self._adverts[owner].masking_key
            if right:
                return value
        reason = f"the shares that client {owner} handed out do not give {asked.value} that it announced"
        self.refused[owner] = reason
        self.proven.add(owner)
        raise RoundFailed(f"secure aggregation, {self.terms.name}: {reason}")

    def _remove_pair_masks(self, dropped: int, masking: Agreement) -> None:
        for client in self._graph.circle(dropped):
            if self._asked.get(client) is not Secret.SEED:
                continue
            key = pair_mask_key(
                masking, self._adverts[client].masking_key, self.terms.digest, dropped, client
            )
            # the survivor added it if it is the lower of the two
            (remove_mask if client < dropped else add_mask)(self._total, key)
