"""A node's account: one answer a round, names that stay, budgets, and a file that two processes share."""

import itertools
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fl_app.policy import Account, AccountFile, Policy, Refusal, account_file
from fl_app.policy.policy import DifferentialPrivacy, Orders
from fl_app.privacy import Release

ANY = Policy()


def refused(call, *given) -> str | None:
    try:
        call(*given)
    except Refusal as refusal:
        return refusal.code
    return None


@given(st.lists(st.tuples(st.integers(1, 6), st.sampled_from("ab")), max_size=20))
def test_no_round_is_answered_twice_and_none_after_a_later_one(orders):
    account, answered = Account(), []
    run = account.open(1, None, "plan")
    for round, order in orders:
        try:
            repeated = account.is_repeated(ANY, run, round, order)
        except Refusal:
            assert round <= answered[-1][0]
            continue
        if repeated:
            assert answered[-1] == (round, order)
        else:
            account.answer(ANY, run, round, order, [])
            answered.append((round, order))
    rounds = [round for round, _ in answered]
    assert rounds == sorted(set(rounds))
    assert account.answers == len(answered)
    assert Account.from_json(account.to_json()) == account


def test_a_run_keeps_its_name_and_a_name_its_plan():
    account = Account()
    account.open(1, "key", "plan")
    assert refused(account.open, 1, "other", "plan") == "run"
    assert refused(account.open, 1, None, "plan") == "run"
    assert refused(account.open, 2, "key", "another plan") == "run"
    assert account.open(2, "key", "plan") == account.open(1, "key", "plan")


def test_more_answers_a_round_are_given_where_the_policy_says_so():
    policy, account = Policy(orders=Orders(per_round=2)), Account()
    run = account.open(1, None, "plan")
    for order in "ab":
        assert not account.is_repeated(policy, run, 1, order)
        account.answer(policy, run, 1, order, [])
    assert refused(account.is_repeated, policy, run, 1, "c") == "order"


def test_a_budget_is_spent_by_the_sum_of_all_releases():
    """Gaussian releases compose: n of them with noise s cost what one with s / sqrt(n) does."""
    policy = Policy(dp=DifferentialPrivacy(epsilon=4.0))
    account, count = Account(), 0
    run = account.open(1, None, "plan")
    while refused(account.answer, policy, run, count + 1, "o", [Release(1.0, 5.0, 1, 1e-6)]) is None:
        count += 1
    once = Account()
    once.answer(ANY, once.open(1, None, "p"), 1, "o", [Release(1.0, 5.0 / math.sqrt(count), 1, 1e-6)])
    assert account.epsilon(1e-5) == pytest.approx(once.epsilon(1e-5), rel=1e-6)
    assert account.epsilon(1e-5) <= 4.0
    assert account.answers == count > 1


def test_no_noise_spends_every_budget():
    policy = Policy(dp=DifferentialPrivacy(epsilon=1e6))
    account = Account()
    run = account.open(1, None, "plan")
    assert refused(account.answer, policy, run, 1, "o", [Release(1.0, 0.0, 1, 1e-5)]) == "budget"


def test_a_process_that_slept_does_not_undo_what_another_wrote(tmp_path):
    file = AccountFile(tmp_path / "account.json")
    late, quick = file.load(), file.load()
    for account in (quick, late):
        account.answer(ANY, account.open(1, None, "plan"), 1, "o", [])
    file.save(quick, 0)
    with pytest.raises(OSError, match="another process"):
        file.save(late, 0)
    assert file.load() == quick
    assert file.path.stat().st_mode & 0o077 == 0


def answered(file: AccountFile, rounds: range, *, name: str | None = None) -> Account:
    for round in rounds:
        account = file.load()
        run = account.open(1 if name is None else 2, name, "plan")
        account.answer(ANY, run, round, "o", [Release(round / 1000, 2.0, 1, 1e-5)])
        file.save(account, account.serial - 1)
    return account


def test_answers_are_appended_and_the_file_stays_short(tmp_path, monkeypatch):
    monkeypatch.setattr("fl_app.policy.account_file.SHORT", 2000)
    file = AccountFile(tmp_path / "account.json")
    sizes, inodes = [], set()
    for round in range(1, 200):
        written = answered(file, range(round, round + 1))
        sizes.append(file.path.stat().st_size)
        inodes.add(file.path.stat().st_ino)
    assert sum(later > sooner for sooner, later in itertools.pairwise(sizes)) > 150
    assert max(sizes) < 4 * len(written.to_json()) + 2000
    account_file._read.clear()  # as another process sees it
    assert file.load() == written
    assert (written.answers, written.serial) == (199, 199)


def test_a_line_that_was_cut_short_counts_for_nothing_and_is_written_over(tmp_path):
    file = AccountFile(tmp_path / "account.json")
    before = answered(file, range(1, 4))
    whole = file.path.read_bytes()
    after = answered(file, range(4, 5), name="key")
    content = file.path.read_bytes()
    assert content.startswith(whole)
    for end in range(len(whole), len(content)):
        file.path.write_bytes(content[:end])
        assert file.load() == before
    again = answered(file, range(4, 5), name="key")
    assert again == after
    assert file.path.read_bytes() == content


@pytest.mark.parametrize("line", ["", "{", "[]", "first", "x" * 100])
def test_a_damaged_line_is_not_passed_over(line, tmp_path):
    file = AccountFile(tmp_path / "account.json")
    answered(file, range(1, 4))
    lines = file.path.read_text().splitlines()
    lines[1] = lines[0] if line == "first" else line
    file.path.write_text("\n".join(lines) + "\n")
    assert refused(file.load) == "node"


def test_what_was_refused_is_in_no_later_account(tmp_path):
    file = AccountFile(tmp_path / "account.json")
    answered(file, range(1, 2))
    account = file.load()
    account.answer(ANY, account.open(2, "other", "plan"), 1, "o", [Release(0.9, 2.0, 1, 1e-5)])
    # not saved: the answer did not leave
    assert file.load().answers == 1
    assert file.load().runs.keys() == {"run-1"}
    assert file.load().spent == {"1e-05": [[0.001, 2.0, 1]]}


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"runs": 1}', '{"runs": {"a": {}}}', '{"runs": {}, "x": 1}']
)
def test_a_damaged_account_is_not_taken_for_an_empty_one(text, tmp_path):
    (tmp_path / "account.json").write_text(text)
    assert refused(AccountFile(tmp_path / "account.json").load) == "node"


@pytest.mark.parametrize(
    "change",
    [
        {"serial": "0"},
        {"answers": None},
        {"answers": 1.5},
        {"more": 1},
        {"spent": {"1e-05": [[0.1, 1.0]]}},
        {"spent": {"1e-05": [[0.1, 1.0, -5]]}},
        {"runs": {"key": {"plan": 1}}},
        {"runs": {"key": {"plan": "p", "numbers": ["1"]}}},
        {"runs": {"key": {"plan": "p", "located": "x"}}},
        {"runs": []},
    ],
    ids=str,
)
def test_an_account_of_other_types_is_no_account(change, tmp_path):
    plain = json.loads(Account().to_json())
    (tmp_path / "account").write_text(json.dumps(plain | change))
    assert refused(AccountFile(tmp_path / "account").load) == "node"
