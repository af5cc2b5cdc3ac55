"""Cards survive a file, strangers' are checked, and the leaderboard corrects its tests."""

import json

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fl_app.bench.board import card_page, compare, find_cards, holm, markdown_board, write_board
from fl_app.bench.card import Accuracy, Bytes, Card, Condition, card_schema, read_card, write_card
from fl_app.bench.criterion import criterion, criterion_hash
from fl_app.bench.judge import attacked, judge, judge_condition

RULE = criterion()


def make(name, scores, size="small", images="h", **more):
    attacks = [attacked("photographs", "all", [scores], [scores], ["a <note>"], RULE)]
    condition = Condition(
        model="lenet", images_of="cifar10", view="one", grey=0.1, attacks=attacks, images_hash=images
    )
    condition = judge_condition(condition, RULE, expected=[])
    fields = {
        "defense": name,
        "source": name,
        "overrides": [f"defense={name}"],
        "criterion_version": 1,
        "criterion_hash": criterion_hash(),
        "size": size,
        "seed": 1009,
        "verdict": "not measured",
        "why": "",
        "conditions": [condition],
        "accuracy": Accuracy(),
        "bytes": Bytes(),
    }
    card = Card(**(fields | more))
    verdict, why = judge(card)
    return card.model_copy(update={"verdict": verdict, "why": why})


def stored(folder, card):
    where = folder / card.defense
    where.mkdir(parents=True)
    return write_card(where, card)


def test_a_card_is_read_as_it_was_written_and_fits_its_schema(tmp_path):
    card = make("dgp", [0.7, 0.6, 0.8])
    path = stored(tmp_path, card)
    assert read_card(path) == card
    jsonschema.validate(json.loads(path.read_text()), card_schema())


def test_the_schema_in_the_documentation_is_the_one_of_the_code(repository):
    assert json.loads((repository / "docs" / "card.schema.json").read_text()) == card_schema()


@pytest.mark.parametrize(
    "damage",
    [
        lambda c: c | {"schema_version": 2},
        lambda c: c | {"verdict": "wins"},
        lambda c: {k: v for k, v in c.items() if k != "conditions"},
        lambda c: c | {"extra": 1},
        lambda c: [c],
        lambda c: c | {"seed": "1"},
    ],
)
def test_a_damaged_card_is_refused_by_name(tmp_path, damage):
    path = stored(tmp_path, make("dgp", [0.7, 0.6]))
    path.write_text(json.dumps(damage(json.loads(path.read_text()))))
    with pytest.raises(ValueError, match=r"card\.json: is no card"):
        read_card(path)
    cards, refused = find_cards([tmp_path])
    assert not cards
    assert len(refused) == 1


def test_cards_of_another_criterion_or_of_tuning_do_not_join(tmp_path):
    stored(tmp_path, make("a", [0.2, 0.3], criterion_hash="0" * 64))
    stored(tmp_path, make("b", [0.2, 0.3], tuning=True))
    stored(tmp_path, make("c", [0.2, 0.3]))
    cards, refused = find_cards([tmp_path])
    assert [card.defense for card in cards] == ["c"]
    assert len(refused) == 2


def test_what_falls_stands_below_what_does_not(tmp_path):
    stored(tmp_path, make("leaky", [0.8, 0.9, 0.85]))
    stored(tmp_path, make("quiet", [0.1, 0.11, 0.09]))
    cards, _ = find_cards([tmp_path])
    assert [(card.defense, card.verdict) for card in cards] == [("quiet", "not refuted"), ("leaky", "falls")]


def test_the_pages_escape_what_strangers_wrote(tmp_path):
    card = make("<b>x", [0.8, 0.9])
    assert "<b>x" not in card_page(card)
    assert 'data-verdict="falls"' in card_page(card)
    (tmp_path / "x").mkdir()
    write_card(tmp_path / "x", card)
    page = write_board(tmp_path, [tmp_path]).read_text()
    assert "<b>x" not in page
    assert 'data-cards="1"' in page


def test_the_board_is_also_numbers(tmp_path):
    stored(tmp_path, make("dgp", [0.7] * 6 + [0.71]))
    stored(tmp_path, make("ours", [0.3] * 6 + [0.31]))
    write_board(tmp_path, [tmp_path])
    content = json.loads((tmp_path / "leaderboard.json").read_text())
    (row,) = content["comparisons"]
    assert row["defense"] == "ours"
    assert row["p"] == row["corrected"] == pytest.approx(2.0**-7)
    header, rule, *rows = markdown_board(find_cards([tmp_path])[0]).splitlines()
    assert header.count("|") == rule.count("|")
    assert [row.split("|")[1].strip() for row in rows] == ["ours", "dgp"]


def test_defenses_are_compared_on_the_same_images_alone():
    same, other = make("x", [0.3] * 7), make("y", [0.3] * 7, images="g")
    rows = compare([make("dgp", [0.7] * 7), same, other])
    assert [row.defense for row in rows] == ["x"]


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12))
def test_holms_correction_against_its_definition(ps):
    adjusted = holm(ps)
    order = sorted(range(len(ps)), key=lambda i: ps[i])
    for level in (0.01, 0.05, 0.2):
        rejected = set()
        for rank, i in enumerate(order):  # step down until the first that is not rejected
            if ps[i] > level / (len(ps) - rank):
                break
            rejected.add(i)
        close = {i for i in range(len(ps)) if abs(adjusted[i] - level) < 1e-12}
        assert {i for i in range(len(ps)) if adjusted[i] <= level} - close == rejected - close


def test_the_leaderboard_in_the_documentation_is_made_of_the_cards(repository):
    cards, refused = find_cards([repository / "benchmarks" / "cards"])
    assert cards
    assert not refused
    page = (repository / "docs" / "bench.md").read_text(encoding="utf-8")
    assert markdown_board(cards) in page
    broken = [card for card in cards if card.source.startswith("benchmarks/broken_defenses.py")]
    assert broken
    assert {card.verdict for card in broken} == {"falls"}
