import os
from hashlib import sha256

import numpy as np
import pytest
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from scipy.stats import chisquare
from secure_rounds import Cohort, make_terms, play

from fl_app.secagg import SecureRound, offer
from fl_app.secagg.keys import Agreement, Purpose, derive_key, make_private_key, pair_mask_key
from fl_app.secagg.masks import add_mask, remove_mask
from fl_app.secagg.messages import Masked
from fl_app.secagg.stages import read_stage

UNLIKELY = 1e-6
TOY_BITS = 12


def our_mask(key: bytes, size: int = 2) -> tuple[int, ...]:
    words = np.zeros(size, "<u4")
    add_mask(words, key)
    return tuple(words.tolist())


def toy_mask(key: bytes, size: int = 2) -> tuple[int, ...]:
    """A generator that uses 12 bits of its key, as a bad one might."""
    seed = int.from_bytes(key, "little") % 2**TOY_BITS
    return tuple(np.frombuffer(sha256(seed.to_bytes(2)).digest(), "<u4", size).tolist())


def collides(generate, keys: int) -> bool:
    """The birthday test: with keys from 2^b possible ones, 2^(b/2) draws have two alike."""
    return len({generate(os.urandom(32)) for _ in range(keys)}) < keys


def search(generate, seen: tuple[int, ...]) -> int | None:
    """Try all keys of 12 bits against a mask that was seen."""
    for number in range(2**TOY_BITS):
        if generate(number.to_bytes(32, "little")) == seen:
            return number
    return None


def byte_counts(packed: bytes) -> np.ndarray:
    return np.bincount(np.frombuffer(packed, np.uint8), minlength=256)


# ---- keys


def test_derivation_is_hkdf_of_the_standard():
    secret, digest = os.urandom(32), os.urandom(32)
    info = Purpose.PAIR_MASK.value + (3).to_bytes(4, "little") + (700).to_bytes(4, "little")
    oracle = HKDF(SHA256(), 32, salt=digest, info=info).derive(secret)
    assert derive_key(secret, Purpose.PAIR_MASK, digest, 3, 700) == oracle


def test_every_round_purpose_and_pair_has_its_own_key():
    secret = bytes(32)
    digests = [make_terms(round=1).digest, make_terms(round=2).digest, make_terms(attempt=1).digest]
    digests += [make_terms(5).digest, make_terms(job=bytes(32)).digest, make_terms(run=bytes(16)).digest]
    contexts = [(p, d, ids) for p in Purpose for d in digests for ids in ((1,), (1, 2), (2, 1), (1, 3))]
    assert len({derive_key(secret, p, d, *ids) for p, d, ids in contexts}) == len(contexts)


def test_two_clients_agree_on_one_pair_key():
    one, two = Agreement(make_private_key()), Agreement(make_private_key())
    digest = os.urandom(32)
    assert pair_mask_key(one, two.public, digest, 4, 9) == pair_mask_key(two, one.public, digest, 9, 4)


# ---- the key space


def test_a_small_key_space_fails_the_birthday_test_and_ours_passes():
    assert collides(toy_mask, 500)  # 30 pairs alike are expected
    assert not collides(our_mask, 500)


def test_a_small_key_space_is_searched_and_ours_is_not():
    key = os.urandom(32)
    assert search(toy_mask, toy_mask(key)) == int.from_bytes(key, "little") % 2**TOY_BITS
    assert search(our_mask, our_mask(key)) is None


def test_keys_that_flower_folds_into_the_same_32_bits_give_different_masks_here():
    secaggplus = pytest.importorskip("flwr.common.secure_aggregation.secaggplus_utils")

    def flower_mask(key: bytes) -> list[int]:
        return secaggplus.pseudo_rand_gen(key, 2**32, [(8,)])[0].tolist()

    key = os.urandom(32)
    # its seed is the XOR of the key's eight words: the same change of two words goes unnoticed
    change = os.urandom(4)
    alike = (int.from_bytes(key) ^ int.from_bytes(change + change + bytes(24))).to_bytes(32)
    assert flower_mask(key) == flower_mask(alike)
    assert our_mask(key) != our_mask(alike)


def test_all_256_bits_of_a_key_matter():
    masks = {our_mask((1 << bit).to_bytes(32, "little")) for bit in range(256)}
    assert len(masks | {our_mask(bytes(32))}) == 257


def test_all_bits_of_a_clients_secrets_vary():
    invitation = make_terms().to_bytes()
    stages = [read_stage(offer(invitation, client=1).state) for _ in range(64)]
    # RFC 7748 fixes five bits of an X25519 key
    for name, free in (("seed", 256), ("masking_key", 251), ("sealing_key", 251)):
        secrets = b"".join(getattr(stage, name) for stage in stages)
        bits = np.unpackbits(np.frombuffer(secrets, np.uint8).reshape(64, 32), axis=1)
        # a fair bit is the same 64 times with chance 2^-63
        assert (bits.min(axis=0) < bits.max(axis=0)).sum() == free


# ---- masks


@pytest.mark.parametrize("word", ["<u2", "<u4", "<u8"])
@pytest.mark.parametrize("size", [1, 7, 1 << 16, (1 << 17) + 3])
def test_a_mask_is_removed_without_a_trace(word, size):
    words = np.random.default_rng(0).integers(0, 2**16, size).astype(word)
    before = words.copy()
    key = os.urandom(32)
    add_mask(words, key)
    # 16 random bits stay as they are with chance 2^-16 each
    assert np.mean(words == before) < 0.01 or size < 100
    remove_mask(words, key)
    assert np.array_equal(words, before)


def test_no_part_of_a_long_mask_repeats():
    words = np.zeros(3 << 16, "<u8")
    add_mask(words, os.urandom(32))
    assert len(np.unique(words)) == len(words)


def test_masked_vectors_are_uniform_and_change_every_round():
    size = 20_000
    vectors = {client: np.full(size, 0.25) for client in range(3)}
    cohort, seen = Cohort(vectors), []
    for round in (1, 2):
        terms = make_terms(3, size=size, step=2.0**-24, round=round)
        messages = play(terms, cohort, until="mask")
        masked = Masked.from_bytes(cohort.answer("mask", messages)[1], terms, client=1)
        seen.append(terms.fixed_point.unpack(masked.packed))
    grid = terms.fixed_point
    for words in (*seen, seen[1] - seen[0]):
        assert chisquare(byte_counts(grid.pack(words))).pvalue > UNLIKELY
    assert chisquare(byte_counts(grid.pack(grid.encode(vectors[1])))).pvalue < UNLIKELY


def test_a_late_vector_of_a_dropped_client_stays_hidden_by_its_self_mask():
    size = 20_000
    terms = make_terms(4, size=size, step=2.0**-24)
    cohort, server = Cohort({client: np.zeros(size) for client in range(4)}), SecureRound(terms)
    deliveries = play(terms, cohort, until="mask", server=server)
    masking_key = read_stage(cohort.states[2]).masking_key
    seed = read_stage(cohort.states[2]).seed
    peers = read_stage(cohort.states[2]).peers
    replies = cohort.answer("mask", deliveries)
    late = terms.fixed_point.unpack(Masked.from_bytes(replies.pop(2), terms, client=2).packed).copy()
    server.collect_unmasking(cohort.answer("unmask", server.collect_masked(replies)))
    # all that the server has learned about client 2 is its masking key
    for other in (0, 1, 3):
        key = pair_mask_key(Agreement(masking_key), peers[other].masking_key, terms.digest, 2, other)
        (remove_mask if other > 2 else add_mask)(late, key)
    assert chisquare(byte_counts(terms.fixed_point.pack(late))).pvalue > UNLIKELY
    # with the seed, too, nothing would be left of the masks
    remove_mask(late, derive_key(seed, Purpose.SELF_MASK, terms.digest, 2))
    assert not terms.fixed_point.signed(late).any()
