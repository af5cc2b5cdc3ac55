"""Server side of the protocol: the next messages from the replies received.

A reply that breaks a rule is refused by its sender's name, and that client counts as dropped out. Below the
threshold the round fails with an error that says who is left, and there is no sum.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from fl_app.secagg.envelopes import Passage, Secret, check_share, commit_to_seed
from fl_app.secagg.errors import ProtocolError, QuorumError, RoundFailed
from fl_app.secagg.fixed_point import Words
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
    """The sum of the survivors' vectors, and who they are."""

    terms: Terms
    survivors: tuple[int, ...]
    words: Words
    """Modulo 2^bits, exact."""

    def values(self) -> NDArray[np.float64]:
        """Return the sum as real numbers; the caller divides."""
        return self.terms.fixed_point.decode(self.words)


class SecureRound:
    """One attempt at one round: `invite`, then one ``collect_`` call per exchange, in order.

    Replies are given by client id as the transport knows it, not as the message says.
    """

    def __init__(self, terms: Terms, *, pinned: Pinned | None = None) -> None:
        self.terms = terms
        self.refused: dict[int, str] = {}
        """By client: why its last refused message was refused."""
        self.proven: set[int] = set()
        """Who handed out shares that contradict its own announcement: no holder of them can forge that."""
        self.unmasking_begun = False
        """True if clients may have given shares: then this attempt counts as a release, even if it fails."""
        self._pinned = pinned if terms.signed else None
        self._next = "invite"
        self._ring = Keyring(())
        self._places: dict[int, int] = {}
        self._keys: dict[bytes, int] = {}
        self._shares: dict[int, Shares] = {}
        self._survivors: tuple[int, ...] = ()
        self._asked: dict[int, Secret] = {}
        self._total: Words = np.zeros(0, terms.fixed_point.word)

    def invite(self) -> dict[int, bytes]:
        """Return the terms for every participant; it answers with `fl_app.secagg.offer`."""
        self._enter("invite", then="collect_adverts")
        return dict.fromkeys(self.terms.participants, self.terms.to_bytes())

    def collect_adverts(self, replies: Mapping[int, bytes]) -> dict[int, bytes]:
        """Exchange 1 ends, exchange 2 begins: everyone's keys for everyone; answer: `fl_app.secagg.share`."""
        self._enter("collect_adverts", then="collect_shares")
        adverts = self._read("keys", replies, self.terms.participants, self._read_advert)
        self._ring = Keyring(tuple(adverts.values()))
        self._places = {client: i for i, client in enumerate(adverts)}
        return dict.fromkeys(adverts, self._ring.to_bytes(self.terms))

    def collect_shares(self, replies: Mapping[int, bytes]) -> dict[int, bytes]:
        """Exchange 2 ends, exchange 3 begins: everyone's envelopes; answer: `fl_app.secagg.mask`."""
        self._enter("collect_shares", then="collect_masked")
        holders = self._ring.clients
        self._shares = self._read(
            "shares",
            replies,
            holders,
            lambda client, blob: Shares.from_bytes(blob, self.terms, client=client, holders=len(holders)),
        )
        owners = tuple(self._shares)
        return {
            holder: Delivery(owners, tuple(self._envelope(owner, holder) for owner in owners)).to_bytes(
                self.terms
            )
            for holder in owners
        }

    def collect_masked(self, replies: Mapping[int, bytes]) -> dict[int, bytes]:
        """Exchange 3 ends: the survivors are known.

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
        """Exchange 4 of a signed round ends: signatures for everyone; answer: `fl_app.secagg.unmask`."""
        self._enter("collect_endorsements", then="collect_unmasking")
        endorsements = self._read("signatures", replies, self._survivors, self._read_endorsement)
        return self._request(tuple(endorsements.values()))

    def collect_unmasking(self, replies: Mapping[int, bytes]) -> SecureSum:
        """Take the masks off the sum, with the shares of at least ``threshold`` survivors."""
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
        # what all of them may send together; a liar's random words leave it in half of all entries or more
        most = len(self._survivors) * grid.levels
        outside = int((np.abs(grid.signed(self._total)) > most).sum())
        if outside:
            raise RoundFailed(
                f"secure aggregation, {self.terms.name}: {outside} of {self.terms.size} entries of the sum "
                f"are beyond what {len(self._survivors)} clients may send: one lies, and masks hide which"
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
    ) -> dict[int, _Message]:
        """Return the valid replies by client, ascending; refuse the others, and fail if too few remain."""
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
        if len(good) < self.terms.threshold:
            self._next = "nothing more: the round has failed"
            raise QuorumError(
                f"secure aggregation, {self.terms.name}, exchange of {exchange}",
                needed=self.terms.threshold,
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

    def _envelope(self, owner: int, holder: int) -> bytes:
        return self._shares[owner].envelopes[self._places[holder]]

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
            transcript = hash_transcript(hash_keyring(self.terms, self._ring), tuple(self._shares))
            statement = survivors_statement(self.terms, transcript, self._survivors)
            what = f"endorsement from client {client}"
            check_signature(self._pinned, client, statement, endorsement.signature, what)
        return endorsement

    def _read_unmasking(self, client: int, blob: bytes) -> Unmasking:
        unmasking = Unmasking.from_bytes(blob, self.terms, client=client, owners=len(self._shares))
        for owner, share in zip(self._shares, unmasking.shares, strict=True):
            passage = Passage(self.terms.digest, owner=owner, holder=client)
            what = f"unmasking from client {client}"
            check_share(passage, self._envelope(owner, client), self._asked[owner], share, what)
        return unmasking

    def _recover(self, answers: Mapping[int, Unmasking]) -> dict[int, bytes]:
        """Return the seed of every survivor and the masking key of everyone else who gave shares."""
        holders = list(answers)[: self.terms.threshold]
        weights = weigh_points([self.terms.point(holder) for holder in holders])
        columns = zip(*(answers[holder].shares for holder in holders), strict=True)
        secrets = {}
        for owner, column in zip(self._shares, columns, strict=True):
            secret = join_shares([int.from_bytes(share, "little") for share in column], weights)
            secrets[owner] = self._check_secret(owner, secret)
        return secrets

    def _check_secret(self, owner: int, secret: int) -> bytes:
        """Refuse shares that lie on no polynomial of the secret that their owner showed a hash or key of."""
        asked = self._asked[owner]
        if secret < 1 << (8 * SECRET_BYTES):
            value = secret.to_bytes(SECRET_BYTES, "little")
            if asked is Secret.SEED:
                commitment = commit_to_seed(self.terms.digest, owner, value)
                right = commitment == self._shares[owner].seed_commitment
            else:
                right = Agreement(value).public == self._advert(owner).masking_key
            if right:
                return value
        reason = f"the shares that client {owner} handed out do not give {asked.value} that it announced"
        self.refused[owner] = reason
        self.proven.add(owner)
        raise RoundFailed(f"secure aggregation, {self.terms.name}: {reason}")

    def _remove_pair_masks(self, dropped: int, masking: Agreement) -> None:
        for client in self._survivors:
            key = pair_mask_key(masking, self._advert(client).masking_key, self.terms.digest, dropped, client)
            # the survivor added it if it is the lower of the two
            (remove_mask if client < dropped else add_mask)(self._total, key)

    def _advert(self, client: int) -> Advert:
        return self._ring.adverts[self._places[client]]
