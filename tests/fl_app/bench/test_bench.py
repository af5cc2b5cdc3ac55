"""A bench measures, stops when the time is up, and goes on with what is left."""

import json
from dataclasses import replace

import pytest

from attacks.optimisation import inverting_gradients
from fl_app.bench.criterion import criterion
from fl_app.bench.effort import effort_of
from fl_app.bench.leak import LeakBench
from fl_app.bench.run import Bench
from fl_app.bench.subject import subject_of
from fl_app.cli import bench as command

TINY = replace(
    effort_of("small", criterion()),
    images=3,
    chunk=3,
    steps=3,
    public_images=20,
    rehearsals=1,
    accuracy_rounds=3,
    accuracy_seeds=(0,),
)
SECURE = ["secagg=on", "secagg.bound=1", "secagg.step=3.8e-6"]


@pytest.fixture(autouse=True)
def _no_data(monkeypatch, tmp_path):
    monkeypatch.setenv("FL_APP_DATA", str(tmp_path / "none"))
    monkeypatch.setattr("fl_app.bench.training.BYTES_ROUNDS", 3)
    monkeypatch.chdir(tmp_path)


def bench(tmp_path, subject, said, minutes=30.0, **effort):
    return Bench(subject, replace(TINY, **effort), tmp_path / "bench", minutes, said.append)


def test_a_bench_measures_every_view_and_a_second_call_attacks_nothing_again(tmp_path, monkeypatch):
    said = []
    card = bench(tmp_path, subject_of("common_signs"), said).run()
    assert [c.view for c in card.conditions] == ["one", "ten_fixed", "ten_stream"]
    for condition in card.conditions:
        assert condition.images == 3
        assert condition.grey is not None
        for attacked in condition.attacks:
            assert len(attacked.ssim) == 3
            assert all(-1 <= score <= 1 for score in attacked.ssim)
    assert card.verdict in ("falls", "not decided", "not refuted")  # never holds in this size
    assert card.bytes.uplink < 0.05 * card.bytes.dense
    assert card.bytes.verdict == "holds"
    assert any("images: 3 of 100" in line for line in card.not_measured)
    assert any("cifar10" in line for line in card.not_measured)
    assert json.loads((bench(tmp_path, subject_of("common_signs"), []).folder / "card.json").read_text())

    def never(*args, **kwargs):
        raise AssertionError("attacked again")

    monkeypatch.setattr(inverting_gradients, "many", never)
    again = bench(tmp_path, subject_of("common_signs"), []).run()
    assert again.conditions == card.conditions


def test_time_that_is_up_leaves_a_card_that_says_so(tmp_path):
    said = []
    card = bench(tmp_path, subject_of("dgp"), said, minutes=1e-9).run()
    assert card.verdict == "not measured"
    assert sum("no time" in line for line in card.not_measured) == 5
    assert any("goes on" in line for line in said)


def test_an_interrupted_bench_leaves_a_card(tmp_path, monkeypatch):
    def interrupted(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(LeakBench, "attack", interrupted)
    made = bench(tmp_path, subject_of("dgp"), [])
    with pytest.raises(KeyboardInterrupt):
        made.run()
    assert (made.folder / "card.json").is_file()


def test_under_masks_the_sum_is_attacked(tmp_path, monkeypatch):
    one = criterion().leak.views[:1]
    card = bench(tmp_path, subject_of("secure_signs", SECURE), [], views=one).run()
    (condition,) = card.conditions
    assert condition.images == 3
    assert condition.attacks
    assert card.bytes.uplink is not None


@pytest.mark.slow
def test_a_defense_that_sends_nothing_at_first_is_attacked_when_it_speaks(tmp_path):
    one = criterion().leak.views[:1]
    card = bench(tmp_path, subject_of("warm_start", ["defense.rounds=4"]), [], views=one).run()
    assert card.conditions[0].first_round == 5


@pytest.mark.slow
def test_a_defense_that_never_speaks_is_not_measured(tmp_path):
    one = criterion().leak.views[:1]
    said = []
    card = bench(tmp_path, subject_of("warm_start", ["defense.rounds=500"]), said, views=one).run()
    assert card.conditions[0].verdict == "not measured"
    assert "0 updates" in card.conditions[0].why
    assert card.verdict != "holds"


def test_the_command_asks_for_a_defense_and_checks_its_words(tmp_path):
    with pytest.raises(ValueError, match="expected a defense"):
        command.main([])
    with pytest.raises(ValueError, match="did you mean"):
        command.main(["dpg"])
    with pytest.raises(ValueError, match="above 0"):
        command.main(["dgp", "--minutes", "0"])
    with pytest.raises(ValueError, match="--only: expected some of one"):
        command.main(["dgp", "--only", "two"])
    with pytest.raises(ValueError, match="no such file"):
        command.main(["--board", "nowhere"])


def test_a_board_of_cards(tmp_path, capsys):
    made = bench(tmp_path, subject_of("dgp"), [], minutes=1e-9)
    made.run()
    command.main(["--board", str(made.folder), "--into", str(tmp_path)])
    assert "dgp" in capsys.readouterr().out
    assert (tmp_path / "leaderboard.html").is_file()


@pytest.mark.slow
@pytest.mark.parametrize("broken", ["support_by_magnitude", "signs_without_randomness"])
def test_defenses_that_are_broken_on_purpose_fall(tmp_path, repository, broken):
    subject = subject_of(f"{repository}/benchmarks/broken_defenses.py:{broken}")
    views = criterion().leak.views[:1]
    card = bench(
        tmp_path, subject, [], images=6, chunk=6, steps=250, public_images=2000, rehearsals=4, views=views
    ).run()
    assert card.conditions[0].verdict == "falls"
