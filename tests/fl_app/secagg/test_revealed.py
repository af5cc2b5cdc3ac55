"""Sums that differ by few clients are refused by a client that remembers, also after a restart."""

import numpy as np
import pytest
from flwr.app import ConfigRecord, RecordDict
from hypothesis import given
from hypothesis import strategies as st
from secure_rounds import Cohort, make_terms, play

from fl_app.client.secure import SecureMember, SecureSettings
from fl_app.secagg import ProtocolError, Revealed, create_identities, load_identity
from fl_app.secagg.messages import Request, Survivors
from fl_app.secagg.revealed import MOST_LISTS
from fl_app.wire.messages import ENDORSE, UNMASK

lists = st.lists(st.sets(st.integers(0, 40), min_size=1).map(sorted).map(tuple), max_size=MOST_LISTS)


@given(lists)
def test_memory_survives_its_numbers(listed):
    revealed = Revealed()
    for survivors in listed:
        revealed = revealed.add(survivors)
    assert Revealed.from_numbers(revealed.to_numbers()) == revealed
    assert set(revealed.lists) == set(listed)


@given(lists, st.sets(st.integers(0, 40), min_size=1), st.integers(0, 12))
def test_a_list_passes_if_every_other_one_is_far_enough(listed, survivors, least):
    apart = [len(set(other) ^ survivors) for other in listed]
    if any(0 < distance < least for distance in apart):
        with pytest.raises(ProtocolError, match=f"at least {least} clients of difference"):
            Revealed(tuple(listed)).check(1, sorted(survivors), least=least)
    else:
        Revealed(tuple(listed)).check(1, sorted(survivors), least=least)


def test_memory_is_bounded_and_forgets_the_oldest():
    revealed = Revealed()
    for first in range(MOST_LISTS + 5):
        revealed = revealed.add((first, 1000))
    assert len(revealed.lists) == MOST_LISTS
    assert revealed.lists[0] == (5, 1000)


def asked(folder, round, survivors, *, least=0, records=None, identities=None, attempt=0):
    """Let client 1 answer for a survivor list in a round of its own; return what it remembers."""
    signed = identities is not None
    terms = make_terms(8, round=round, attempt=attempt, signed=signed)
    cohort = Cohort({client: np.zeros(3) for client in range(8)}, identities or {})
    play(terms, cohort, until="endorse" if signed else "unmask")
    records = RecordDict() if records is None else records
    records["secure"] = ConfigRecord({"state": cohort.states[1]})
    settings = SecureSettings(2, None, min_difference=least)
    member = SecureMember(settings, 1, records, folder)
    if signed:
        member = SecureMember(SecureSettings(2, folder / "keys", least), 1, records, folder)
        member.answer(ENDORSE, Survivors(survivors).to_bytes(terms))
    else:
        member.answer(UNMASK, Request(survivors).to_bytes(terms))
    return records


ALL, ONE_LESS, TWO_LESS = tuple(range(8)), tuple(range(7)), tuple(range(6))


def test_a_client_with_a_folder_refuses_the_sum_of_all_but_one_after_a_restart(tmp_path):
    asked(tmp_path, 1, ALL, least=2)
    with pytest.raises(ProtocolError, match=r"client 1: survivor list: .*at least 2 clients .* got 1"):
        asked(tmp_path, 2, ONE_LESS, least=2)
    asked(tmp_path, 2, ALL, least=2)
    asked(tmp_path, 3, TWO_LESS, least=2)
    with pytest.raises(ProtocolError, match="got 1"):  # between the two
        asked(tmp_path, 4, ONE_LESS, least=2)


def test_a_refused_sum_is_not_remembered(tmp_path):
    asked(tmp_path, 1, ALL, least=2)
    with pytest.raises(ProtocolError):
        asked(tmp_path, 2, ONE_LESS, least=2)
    asked(tmp_path, 3, TWO_LESS, least=2)


def test_without_a_folder_flowers_memory_of_the_run_serves(tmp_path):
    records = asked(None, 1, ALL, least=2)
    with pytest.raises(ProtocolError, match="got 1"):
        asked(None, 2, ONE_LESS, least=2, records=records)


def test_a_client_that_insists_on_nothing_warns(tmp_path, caplog):
    asked(tmp_path, 1, ALL, least=0)
    asked(tmp_path, 2, TWO_LESS, least=0)
    assert not caplog.records
    asked(tmp_path, 3, ONE_LESS, least=0)
    assert len(caplog.records) == 1
    assert "revealed" not in asked(None, 4, ALL, least=0)


def test_in_signed_rounds_it_refuses_before_it_signs(tmp_path):
    create_identities(tmp_path / "keys", range(8))
    identities = {client: load_identity(tmp_path / "keys", client) for client in range(8)}
    asked(tmp_path, 1, ALL, least=2)
    with pytest.raises(ProtocolError, match="got 1"):
        asked(tmp_path, 2, ONE_LESS, least=2, identities=identities)


@pytest.mark.parametrize("survivors", [ONE_LESS, (1, 2, 3, 4, 5, 6)])
def test_one_round_reveals_one_sum_however_often_it_is_tried(survivors):
    """Clients send the same vectors in all attempts: the difference of two sums would be exact."""
    records = asked(None, 3, ALL)
    with pytest.raises(ProtocolError, match="that of an earlier attempt at round 3"):
        asked(None, 3, survivors, records=records, attempt=1)
    asked(None, 3, ALL, records=records, attempt=2)
    asked(None, 4, survivors, records=records)


def test_in_a_signed_round_it_signs_no_second_list_of_the_round(tmp_path):
    create_identities(tmp_path / "keys", range(8))
    identities = {client: load_identity(tmp_path / "keys", client) for client in range(8)}
    records = asked(None, 3, ALL)
    with pytest.raises(ProtocolError, match="that of an earlier attempt at round 3"):
        asked(tmp_path, 3, ONE_LESS, records=records, attempt=1, identities=identities)
