"""What a selector reads of made-up cells."""

from dataclasses import replace

import pytest
from study_cells import attack, failed, finished, one_each, planned

from fl_app.config.compose import ConfigError
from fl_app.experiments.studies.measured import curves, searches, select, sentence
from fl_app.experiments.studies.selector import parse_selector
from fl_app.results import Exchange


def read(cells, **raw):
    return select(cells, parse_selector({"metric": "ssim", **raw}, "here"))


def mean(selection):
    return sum(selection.values.values()) / len(selection.values)


def two_forms(plain, adaptive, asked="both", **more):
    attacks = one_each([plain] * 3, **more) + one_each([adaptive] * 3, adaptive=True, **more)
    return [finished(planned(defense="dgp", adaptive=asked), attacks=attacks)]


@pytest.mark.parametrize(("form", "expected"), [("plain", 0.2), ("adaptive", 0.6), ("worst", 0.6)])
def test_a_form_is_the_attackers(form, expected):
    selection = read(two_forms(0.2, 0.6), form=form)
    assert mean(selection) == pytest.approx(expected)
    assert selection.form == ("plain" if form == "plain" else "adaptive")


def test_the_worst_form_is_the_lower_one_where_low_means_alike():
    cells = [
        finished(
            planned(defense="dgp"),
            attacks=[
                attack([0.5], lpips=[0.7]),
                attack([0.5], adaptive=True, lpips=[0.1]),
            ],
        )
    ]
    assert list(read(cells, metric="lpips").values.values()) == [0.1]


def test_who_has_nothing_to_adapt_to_is_both_but_who_was_not_asked_is_missing():
    attacks = one_each([0.3] * 3)
    both = read([finished(planned(defense="none"), attacks=attacks)], form="adaptive")
    assert mean(both) == pytest.approx(0.3)
    alone = read([finished(planned(defense="none", adaptive=False), attacks=attacks)], form="adaptive")
    assert alone.missing == "no attack of that kind has ssim"


def test_what_one_client_exchanged_in_a_round_and_the_largest_residual():
    rows = [
        {"round": 1, "clients": 10, "uplink_bytes": 100, "downlink_bytes": 900, "residual_norm": 3.0},
        {"round": 2, "clients": 5, "uplink_bytes": 50, "downlink_bytes": 100, "dense_bytes": 600},
    ]
    cells = [finished(planned(defense="dgp"), rounds=rows)]
    assert mean(read(cells, metric="bytes_per_client")) == 30
    assert mean(read(cells, metric="bytes_per_client", round=1)) == 100
    assert mean(read(cells, metric="dense_share")) == 0.25
    assert mean(read(cells, metric="residual_square")) == 9
    assert read(cells, metric="gradient_norm").missing == "the runs have no gradient_norm"


def test_what_was_trained_on_is_another_target():
    entry = attack([0.1], trained={"ssim": [0.9]})
    cells = [finished(planned(defense="ats"), attacks=[entry])]
    assert list(read(cells).values.values()) == [0.1]
    assert list(read(cells, against="trained").values.values()) == [0.9]


def test_an_image_that_was_not_found_is_counted_or_has_a_value():
    cells = [finished(planned(defense="dgp"), attacks=[attack([0.5, None, None])])]
    left_out, counted = read(cells), read(cells, not_found=0)
    assert (len(left_out.values), left_out.not_found) == (1, 2)
    assert sorted(counted.values.values()) == [0.0, 0.0, 0.5]


def test_rounds_updates_and_labels_are_chosen():
    attacks = [
        attack([0.1], round=1),
        attack([0.2], round=5),
        attack([0.3], round=5, update="undefended"),
    ]
    cells = [finished(planned(defense="dgp"), attacks=attacks)]
    assert sorted(read(cells).values.values()) == [0.1, 0.2]
    assert list(read(cells, round="last").values.values()) == [0.2]
    assert list(read(cells, round=1).values.values()) == [0.1]
    assert sorted(read(cells, round=[1, 5]).values.values()) == [0.1, 0.2]
    for wrong in ([], [1, "last"], [0]):
        with pytest.raises(ConfigError, match="round: must be a round's number, several, last or best"):
            read(cells, round=wrong)
    assert list(read(cells, update="undefended").values.values()) == [0.3]
    assert read(cells, labels="inferred").missing is not None


def test_an_attack_has_a_curve_over_the_attacked_rounds():
    attacks = [attack([0.1 * c + r], client=c, round=r) for c in range(2) for r in (7, 3)]
    cells = [
        finished(planned(defense="none"), attacks=attacks),
        failed(planned(defense="none", seed=1), "no"),
    ]
    found = curves(cells, parse_selector({"metric": "ssim"}, "here"))
    assert {number: sorted(values) for number, values in found.items()} == {3: [3.0, 3.1], 7: [7.0, 7.1]}


def test_without_a_defense_the_undefended_update_is_the_one_that_was_sent():
    cells = [finished(planned(defense="none"), attacks=[attack([0.4])])]
    assert list(read(cells, update="undefended").values.values()) == [0.4]


def test_two_attacks_on_one_image_are_not_mixed():
    entries = [attack([0.4]), attack([0.1], labels_from="inferred")]
    cells = [finished(planned(defense="dgp"), attacks=entries)]
    assert read(cells).missing == "attacked twice: say labels: granted or inferred"
    assert list(read(cells, labels="inferred").values.values()) == [0.1]


def test_label_scores_have_the_update_as_their_unit():
    entries = [attack([], client=c, labels={"exact": c == 0}) for c in range(2)]
    selection = read([finished(planned(defense="dgp"), attacks=entries)], metric="labels.exact")
    assert selection.unit == "update"
    assert selection.by_unit() == {("seed 0", "0", 1): 1.0, ("seed 0", "1", 1): 0.0}


def test_a_runs_numbers_have_the_seed_as_their_unit_and_may_be_of_a_round():
    rows = [{"round": 1, "accuracy": 0.2}, {"round": 2, "accuracy": 0.4}]
    cells = [
        finished(planned("a", defense="dgp", seed=s), rounds=rows, accuracy=0.4 + s / 10) for s in (0, 1)
    ]
    assert read(cells, metric="accuracy").by_unit() == {("seed 0",): 0.4, ("seed 1",): 0.5}
    assert set(read(cells, metric="accuracy", round=1).values.values()) == {0.2}
    assert read(cells, metric="summary.accuracy").by_unit() == {("seed 0",): 0.4, ("seed 1",): 0.5}
    selector = parse_selector({"metric": "accuracy"}, "here")
    assert curves(cells, selector) == {1: [0.2, 0.2], 2: [0.4, 0.4]}


def test_the_best_round_is_the_one_that_the_run_names():
    rows = [{"round": r, "epsilon": r / 10, "accuracy": a} for r, a in ((1, 0.2), (2, 0.6), (3, 0.5))]
    cells = [finished(planned("a", defense="dgp"), rounds=rows, best_round=2)]
    assert list(read(cells, metric="epsilon", round="best").values.values()) == [0.2]
    assert list(read(cells, metric="epsilon", round="last").values.values()) == [0.3]
    unknown = [finished(planned("a", defense="dgp"), rounds=[{"round": 1, "epsilon": 0.1}])]
    assert read(unknown, metric="epsilon", round="best").missing == "the runs have no epsilon"


def test_what_training_costs_a_client_adds_up_over_rounds_and_is_spread_over_all_of_them():
    rows = [{"round": r, "uplink_bytes": 100 * r, "downlink_bytes": 10} for r in (1, 2, 3)]
    cell = planned("a", defense="dgp")
    cell.config["clients"] = 50
    cells = [finished(cell, rounds=rows, best_round=2)]
    assert list(read(cells, metric="uplink_cost").values.values()) == [600 / 50]
    assert list(read(cells, metric="uplink_cost", round="best").values.values()) == [300 / 50]
    assert list(read(cells, metric="downlink_cost", round=1).values.values()) == [10 / 50]


@pytest.mark.parametrize(
    ("fixed", "rounds", "up", "down"),
    [(True, 200, 110_880, 110_880), (False, 193, 107_000, 21_402_030)],  # FL-TOP and FL-BASIC
)
def test_the_formula_of_the_paper_gives_the_costs_that_it_prints(fixed, rounds, up, down):
    cell = planned("a", defense="dgp")
    cell.config["fraction"] = 1 / 60
    rows = [{"round": r} for r in range(1, 201)]
    measured = finished(cell, rounds=rows, best_round=rounds)
    measured.run.exchange = Exchange(values=8316, of=1_663_370, by_layer={"w": 8316} if fixed else {})
    costs = [mean(read([measured], metric=f"{way}link_formula", round="best")) for way in ("up", "down")]
    assert costs == pytest.approx([up, down], rel=1e-4)
    assert mean(read([measured], metric="uplink_formula")) == pytest.approx(110_880)


def test_runs_that_exchange_no_vectors_have_no_cost_by_the_formula():
    cells = [finished(planned("a", defense="dgp"), rounds=[{"round": 1}])]
    assert read(cells, metric="uplink_formula").missing == "the runs have no uplink_formula"


def test_cells_of_several_kinds_are_one_selection_only_if_that_is_said():
    cells = [
        finished(planned("a", defense="dgp", model=m, seed=0), accuracy=v)
        for m, v in (("x", 0.2), ("y", 0.4))
    ]
    assert "differ in model (x, y)" in read(cells, metric="accuracy").missing
    assert len(read(cells, metric="accuracy", over=["model"]).by_unit()) == 2
    assert list(read(cells, metric="accuracy", model="y").values.values()) == [0.4]


def test_a_missing_cell_says_why_and_one_that_is_not_there_too():
    cells = [failed(planned(defense="dgp"), "failed: no data")]
    assert read(cells, defense="dgp").missing == "failed: no data"
    assert read(cells, defense="topk").missing == "not among the cells of this command"


def test_numbers_are_the_same_however_they_are_written():
    cells = [finished(planned("a", share="1e-3"), accuracy=0.5)]
    assert list(read(cells, metric="accuracy", share=0.001).values.values()) == [0.5]


def traced(client, *points):
    """Return an attack of which snapshots were kept: iteration, MSE, and conv1's distance."""
    rows = [
        {"iteration": i, "distance": 2 * layer, "layers": {"conv1": layer}, "mse": mse}
        for i, mse, layer in points
    ]
    return attack([0.5], client=client, trace=rows, iterations=None if client else 7)


SEARCHES = [traced(0, (0, 0.9, 4.0), (4, 0.5, 2.0), (7, 0.1, 1.0)), traced(1, (0, 0.7, 6.0), (8, 0.3, 3.0))]


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ({"metric": "trace.mse"}, [0.1, 0.3]),
        ({"metric": "trace.mse", "iteration": 5}, [0.5, 0.7]),
        ({"metric": "trace.mse", "iteration": 8, "client": 1}, [0.3]),
        ({"metric": "trace.distance", "iteration": 0}, [8.0, 12.0]),
        ({"metric": "trace.layers.conv1", "iteration": 4}, [2.0, 6.0]),
    ],
)
def test_a_search_is_read_at_an_iteration_and_stays_where_it_ended(raw, expected):
    cells = [finished(planned(defense="none"), attacks=SEARCHES)]
    assert list(read(cells, **raw).values.values()) == expected


def test_searches_are_averaged_at_every_iteration_that_one_of_them_has():
    cells = [finished(planned(defense="none"), attacks=SEARCHES)]
    found = searches(cells, parse_selector({"metric": "trace.mse"}, "here"))
    assert found == {0: [0.9, 0.7], 4: [0.5, 0.7], 7: [0.1, 0.7], 8: [0.1, 0.3]}


def test_a_search_that_never_got_there_is_counted_or_has_a_value():
    cells = [finished(planned(defense="none"), attacks=SEARCHES)]
    left_out, counted = (read(cells, metric="attack.iterations", **more) for more in ({}, {"not_found": 9}))
    assert (list(left_out.values.values()), left_out.not_found) == ([7.0], 1)
    assert list(counted.values.values()) == [7.0, 9]


def test_a_sentence_is_what_was_read_by_then():
    reads = [
        {"iteration": 0, "tokens": ["x", "y"], "accuracy": 0.0},
        {"iteration": 5, "tokens": ["the", "y"], "accuracy": 0.5},
    ]
    tokens = {"true": ["the", "end"], "masked": [False, False], "reads": reads}
    cells = [
        finished(
            planned(defense="none"),
            attacks=[attack([], client=c, labels={"f1": 1}, tokens_by_iteration=tokens) for c in (0, 1)],
        )
    ]
    late = parse_selector({"metric": "trace.tokens", "client": 1, "iteration": 9}, "here")
    assert list(select(cells, late).values.values()) == [0.5]
    assert sentence(cells, late, original=False) == "the y"
    assert sentence(cells, late, original=True) == "the end"
    assert sentence(cells, replace(late, client=None), original=False) is None


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        ({"metric": "mse", "iteration": 3}, "here.iteration: mse is not known of every iteration"),
        ({"metric": "trace.mse", "iteration": -1}, "here.iteration: must be a whole number from 0 on"),
        ({"metric": "trace.mse", "client": "0"}, "here.client: must be a whole number from 0 on"),
        ({"metric": "trace.ssim"}, "'trace.ssim' is no metric"),
        ({"metric": "trace.layers"}, "'trace.layers' is no metric"),
    ],
)
def test_what_no_search_has_is_refused(raw, words):
    with pytest.raises(ConfigError, match=words):
        parse_selector(raw, "here")
