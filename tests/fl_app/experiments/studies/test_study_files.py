"""Reading a study: what it becomes, and what is said about mistakes."""

import copy

import pytest
from study_cells import SKELETON, study

from fl_app.config.compose import ConfigError
from fl_app.experiments.studies import check_selectors, plan_cells, read_study

PART = {"sweep": {"defense": ["none", "dgp"], "seed": [0, 1]}}
SSIM = {"part": "ig", "metric": "ssim"}
DGP, NONE = {**SSIM, "defense": "dgp"}, {**SSIM, "defense": "none"}
CLAIM = {"name": "a", "text": "", "less": DGP, "than": NONE}
TABLE = {
    "columns": {"none": {"defense": "none"}, "DGP": {"defense": "dgp"}},
    "rows": [{"name": ["IG", "SSIM"], "select": SSIM, "better": "lower", "paper": [0.9, None]}],
}
FIGURE = {"kind": "lines", "title": "t", "x": "round", "y": "accuracy", "series": "defense"}


def overrides_of(cells):
    return [cell.overrides[1:] for cell in cells]


def test_a_part_is_every_combination_of_its_axes():
    cells = plan_cells(study())
    assert overrides_of(cells) == [
        ["attack=none", f"defense={d}", f"seed={s}"] for d in ("none", "dgp") for s in (0, 1)
    ]
    assert cells[3].name == "ig: defense=dgp seed=1"


def test_later_settings_replace_earlier_ones_and_a_scale_may_replace_an_axis():
    part = {
        "set": ["attack=ig", "rounds=1"],
        "scale": {"cpu": ["rounds=2"], "paper": {"set": ["rounds=3"], "sweep": {"seed": [7]}}},
        "sweep": {"seed": [0, 1]},
    }
    raw = {**SKELETON, "parts": {"ig": part}}
    assert overrides_of(plan_cells(read_study("own", raw))) == [
        ["attack=ig", "rounds=2", "seed=0"],
        ["attack=ig", "rounds=2", "seed=1"],
    ]
    assert overrides_of(plan_cells(read_study("own", raw, "paper"))) == [["attack=ig", "rounds=3", "seed=7"]]


def test_places_of_an_axis_may_have_names_by_which_they_are_selected():
    part = {
        "sweep": {"defense": {"mild": ["defense=soteria"], "hard": ["defense=soteria", "defense.rate=0.8"]}}
    }
    claim = {**CLAIM, "less": {**SSIM, "defense": "hard"}, "than": {**SSIM, "defense": "mild"}}
    own = study(parts={"ig": part}, claims=[claim])
    cells = plan_cells(own)
    check_selectors(own, cells)
    assert overrides_of(cells)[1] == ["attack=none", "defense=soteria", "defense.rate=0.8"]
    assert overrides_of(plan_cells(own, ["defense=hard"])) == overrides_of(cells)[1:]


def test_names_with_spaces_are_chosen_one_or_several_at_a_time():
    places = {"FL-TOP 5 %": ["defense=fl_top"], "FL-STD": ["defense=fl_std"], "none": ["defense=none"]}
    own = study(parts={"a": {"sweep": {"scheme": places}}})
    for asked in (["FL-TOP 5 %"], ["FL-TOP 5 %", "FL-STD"]):
        cells = plan_cells(own, [f"scheme={','.join(asked)}"])
        assert [cell.at["scheme"] for cell in cells] == asked
        assert overrides_of(cells) == [["attack=none", *places[name]] for name in asked]


def test_the_command_line_replaces_axes_adds_some_and_has_the_last_word():
    own = study(parts={"ig": PART, "rob": {"set": ["rounds=1"]}})
    assert overrides_of(plan_cells(own, ["defense=topk", "seed=5", "rounds=9"])) == [
        ["attack=none", "defense=topk", "seed=5", "rounds=9"],
        # what is no axis of a part is a setting there
        ["attack=none", "defense=topk", "seed=5", "rounds=9"],
    ]
    assert overrides_of(plan_cells(own, ["ig:defense=none", "ig:seed=0", "rob:lr=1,2"])) == [
        ["attack=none", "defense=none", "seed=0"],
        ["attack=none", "rounds=1", "lr=1"],
        ["attack=none", "rounds=1", "lr=2"],
    ]


@pytest.mark.parametrize(("there", "chosen"), [(True, "data=imagefolder"), (False, "data=photos")])
def test_settings_may_depend_on_the_data_that_is_there(tmp_path, monkeypatch, there, chosen):
    monkeypatch.setenv("FL_APP_DATA", str(tmp_path))
    if there:
        (tmp_path / "cifar10").mkdir()
    choice = {"if_data": "cifar10", "set": ["data=imagefolder"], "otherwise": ["data=photos"]}
    own = study(scale={"cpu": [choice]}, parts={"ig": {}})
    assert overrides_of(plan_cells(own)) == [[chosen]]
    assert own.notes == (f"{chosen}: FL_APP_DATA/cifar10 is {'there' if there else 'not there'}",)


def test_entries_of_another_scale_are_left_out():
    own = study(
        claims=[{**CLAIM, "scale": "paper"}, {**CLAIM, "name": "b"}], figures=[{**FIGURE, "scale": ["paper"]}]
    )
    assert ([claim.name for claim in own.claims], own.figures) == (["b"], ())


def test_a_claim_may_say_what_differs_by_scale():
    assert study(honest={"cpu": "small", "paper": "large"}).honest == "small"


def wrong(**more):
    return {**copy.deepcopy(SKELETON), **more}


def row(**more):
    return {"table": {**TABLE, "rows": [{**TABLE["rows"][0], **more}]}}


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (wrong(tabel={}), ["study: unknown key 'tabel'", "did you mean table?"]),
        (wrong(paper="nature"), ["study.paper: must be one of dgp, adgp", "'nature'"]),
        (wrong(scale={"paper": []}), ["study.scale: must have cpu, got paper"]),
        (wrong(parts={}), ["study.parts: expected at least one part"]),
        (
            wrong(parts={"ig": {"sweeps": {}}}),
            ["study.parts.ig: unknown key 'sweeps'", "did you mean sweep?"],
        ),
        (wrong(parts={"ig": {"scale": {"gpu": []}}}), ["parts.ig.scale: the study's scales are cpu, paper"]),
        (wrong(parts={"ig": {"set": "rounds=1"}}), ["parts.ig.set: expected a list, got 'rounds=1'"]),
        (wrong(parts={"ig": {"set": [3]}}), ["parts.ig.set[0]: an override is text"]),
        (wrong(parts={"ig": {"set": ["a^b"]}}), ["a^b: cannot be read"]),
        (wrong(parts={"ig": {"sweep": {"seed": []}}}), ["parts.ig.sweep.seed: expected at least one value"]),
        (wrong(claims=[{"name": "a", "text": ""}]), ["claims[0]: a claim has one of less, more, within"]),
        (wrong(claims=[{**CLAIM, "than": {"part": "ig"}}]), ["claims[0].than: names no metric"]),
        (wrong(claims=[{**CLAIM, "by": 3}]), ["claims[0]: unknown key 'by'"]),
        (wrong(claims=[CLAIM, CLAIM]), ["claims: names must differ, a occurs twice"]),
        (wrong(claims=[{**CLAIM, "less": {**DGP, "part": "gi"}}]), ["claims: a: 'gi' is no part: ig"]),
        (
            wrong(claims=[{**CLAIM, "less": {**DGP, "defense": "tpok"}}]),
            ["claims: a: defense: no cell has tpok; there are none, dgp"],
        ),
        (
            wrong(claims=[{**CLAIM, "less": SSIM}]),
            ["claims: a: names cells that differ in defense (none, dgp)"],
        ),
        (
            wrong(claims=[{**CLAIM, "less": {**DGP, "metric": "sim"}}]),
            ["'sim' is no metric", "did you mean ssim?"],
        ),
        (
            wrong(claims=[{**CLAIM, "less": {**DGP, "form": "mean"}}]),
            ["less.form: must be one of worst, plain"],
        ),
        (
            wrong(claims=[{**CLAIM, "less": {**DGP, "take": "max"}}]),
            ["claims[0]: take: min or max leaves one number"],
        ),
        (wrong(claims=[{**CLAIM, "less": {**DGP, "metric": "accuracy"}}]), ["both sides need the same unit"]),
        (
            wrong(claims=[{"name": "a", "text": "", "at_least": "much", "of": DGP}]),
            ["claims[0].at_least: must be a number, got 'much'"],
        ),
        (wrong(**row(paper=[0.9])), ["rows[0].paper: expected 2 numbers, one a column, got 1"]),
        (wrong(**row(mark={"below": 1})), ["rows[0].mark: expected one of at_most,", "got below"]),
        (wrong(**row(mark={"at_most": "1"})), ["mark.at_most: must be a number, got '1'"]),
        (wrong(**row(show="words")), ["rows[0].show: words are those of metric: trace.tokens"]),
        (
            wrong(figures=[{**FIGURE, "y": "trace.mse"}]),
            ["figures[0].y: trace.… and x: iteration go together, got trace.mse"],
        ),
        (
            wrong(figures=[{**FIGURE, "x": "iteration"}]),
            ["figures[0].y: trace.… and x: iteration go together, got accuracy"],
        ),
        (wrong(**row(better="small")), ["rows[0].better: must be one of lower, higher, none"]),
        (wrong(**row(without={"ATS": "why"})), ["rows[0].without: 'ATS' is no column: none, DGP"]),
        (
            wrong(**row(select={**SSIM, "defense": "dgp"})),
            ["column none: defense is 'none' here and 'dgp' in"],
        ),
        (wrong(figures=[{**FIGURE, "kind": "pie"}]), ["figures[0].kind: must be one of lines, scatter"]),
        (
            wrong(figures=[{**FIGURE, "y": "best_round"}]),
            ["figures[0].y: best_round is not measured round by round"],
        ),
        (
            wrong(figures=[{**FIGURE, "series": "defence"}]),
            ["figures[0]: defence: neither an axis (defense, seed)"],
        ),
    ],
)
def test_mistakes_are_named_when_the_file_is_read(raw, words):
    def read():
        own = read_study(
            "quick", raw
        )  # by the name of an experiment: a key of the config has to be looked up
        check_selectors(own, plan_cells(own))

    with pytest.raises(ConfigError) as error:
        read()
    for word in words:
        assert word in str(error.value)


def test_a_scale_that_is_not_there_lists_those_that_are():
    with pytest.raises(ConfigError, match=r"scale: own has cpu, paper, got 'papr' \(did you mean paper\?\)"):
        read_study("own", SKELETON, "papr")
