"""The section of a report on the server: messages, knowledge, cost of privacy."""

from __future__ import annotations

import base64
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from parsed_page import ParsedPage
from run_folders import with_secure_aggregation, write_model

from fl_app.report import save_images, write_report
from fl_app.results import load_run
from fl_app.wire import encode
from fl_app.wire.bound import entropy_bound

TITLE = "server"
"""The fact of the section's heading."""
HOSTILE = "\"'><script>alert(1)</script>"
KEYS = ("exchange", "privacy", "secure_aggregation")

pytestmark = pytest.mark.usefixtures("quick_charts")


def report(folder: Path) -> ParsedPage:
    page = ParsedPage(write_report(folder))
    assert page.unbalanced == []
    return page


def without_secure_aggregation(result: dict[str, Any]) -> None:
    with_secure_aggregation(result)
    del result["secure_aggregation"]
    result["config"]["choices"]["secagg"] = "off"


def labels(page, start):
    found = [svg.get("aria-label", "") for svg in page.named("svg")]
    return [label for label in found if label.startswith(start)]


def alts(page: ParsedPage, words: str) -> list[str]:
    return [image["alt"] for image in page.named("img") if words in image["alt"]]


def test_all_that_bounds_the_server_is_told_with_the_numbers_of_the_run(make_run):
    page = report(make_run(rounds=4, change=with_secure_aggregation))
    facts, values = page.facts, page.values
    assert TITLE in facts
    assert values["sent"] == "FLTop"
    assert all(number in facts["sent"] for number in ("4 747", "15 826", "30 %"))
    assert values["secure-sum"] == "on"
    assert "3" in facts["secure-sum"]
    assert values["Covered"] == "honest-but-curious server"
    assert values["Not covered"] == "active server"
    assert values["Never covered"] == "sums"
    assert "docs/secure-aggregation.md" in page.text
    assert "ε = 4.00" in facts["epsilon-models"]
    assert "40 %" in facts["epsilon-models"]
    assert "ε = 5.00" in facts["epsilon-server"]
    assert "1e-05" in facts["privacy"]
    assert "1.5" in facts["noise"]
    assert "0.0641" in facts["clip"]
    assert values["clip"] == "learnt"
    assert values["sampling"] == "poisson"
    assert values["noise-source"] == "seed"
    assert "ε = 20" in facts["budget"]
    assert values["budget"] == "held"


def test_the_honest_clients_that_epsilon_of_the_server_relies_on_are_named(make_run):
    def change(result):
        with_secure_aggregation(result)["privacy"]["honest"] = 0.75

    page = report(make_run(rounds=4, change=change))
    assert page.values["epsilon-server"] == "honest 0.75"
    assert "75 %" in page.facts["epsilon-server"]


def test_turns_leave_the_server_without_a_bound(make_run):
    def change(result):
        privacy = with_secure_aggregation(result)["privacy"]
        del result["secure_aggregation"]
        privacy |= {"separation": 5, "adjacency": "add or remove one client"}
        result["summary"]["epsilon_server"] = None

    page = report(make_run(rounds=4, change=change))
    assert page.values["sampling"] == "turns"
    assert "5" in page.facts["sampling"]
    assert page.values["protects-client-server"] == "none"
    assert "ε" not in page.facts["epsilon-server"]


def test_identities_withstand_an_active_server(make_run):
    def change(result):
        with_secure_aggregation(result)["secure_aggregation"]["against"] = "active server"

    values = report(make_run(change=change)).values
    assert values["Covered"] == "active server"
    assert values["Not covered"] == "active server and a third of the clients"
    assert values["Never covered"] == "sums"


def test_without_secure_aggregation_it_is_said_how_little_noise_the_server_faces(make_run):
    page = report(make_run(rounds=4, change=without_secure_aggregation))
    assert page.values["secure-sum"] == "off"
    # four of ten clients are expected: half of the noise multiplier
    assert "1.5 / √4 = 0.75" in page.facts["epsilon-server"]
    assert "1.2 times" in page.facts["epsilon-server"]
    assert "Never covered" not in page.facts


def test_other_settings_of_the_noise_are_told(make_run):
    def change(result):
        with_secure_aggregation(result)
        result["config"]["dp"] |= {"sampling": "fixed", "clip": 0.5, "rate": 1.0}
        result["privacy"]["replayable"] = False
        result["notes"] = ["stopped before round 5: it would bring epsilon to 20.4, the budget is 20"]

    page = report(make_run(change=change))
    told = {fact: page.values[fact] for fact in ("sampling", "clip", "noise-source", "budget")}
    assert told == {
        "sampling": "fixed",
        "clip": "set",
        "noise-source": "operating system",
        "budget": "stopped",
    }
    assert "%" not in page.facts["epsilon-models"]  # all clients take part
    assert "round 5: it would bring epsilon to 20.4" in page.facts["budget"]


@pytest.mark.parametrize(
    ("scheme", "words"),
    [("FLStd", "FL-STD"), ("FLBasic", "FL-BASIC"), ("FLCS", "FL-CS"), ("Other", "Other")],
)
def test_each_scheme_is_told_and_no_noise_is_called_so(make_run, scheme, words):
    def change(result):
        without_secure_aggregation(result)
        del result["privacy"]
        result["exchange"] = {"scheme": scheme, "values": 15826, "of": 15826}
        result["summary"]["epsilon"] = result["summary"]["epsilon_server"] = None
        for row in result["rounds"]:
            row["epsilon"] = row["epsilon_server"] = None

    page = report(make_run(change=change))
    assert page.values["sent"] == scheme
    assert words in page.facts["sent"]
    assert "100 %" in page.facts["sent"]
    assert page.values["privacy"] == "none"
    assert not alts(page, "share of each layer")
    assert not labels(page, "ε by round")


@pytest.mark.parametrize("kept", [(), *[(key,) for key in KEYS], KEYS[:2], KEYS[1:]])
def test_keys_that_are_missing_leave_a_page_without_what_they_said(make_run, kept):
    def change(result):
        with_secure_aggregation(result)
        for key in KEYS:
            if key not in kept:
                del result[key]

    page = report(make_run(change=change))
    assert (TITLE in page.facts) == bool(kept)
    assert ("sent" in page.facts) == ("exchange" in kept)
    assert ("clip" in page.facts) == ("privacy" in kept)
    assert ("Covered" in page.facts) == ("secure_aggregation" in kept)
    # the choice says that it was on, even if nothing else does
    assert page.values.get("secure-sum") == ("on" if kept else None)


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("value", [{}, [], "text", 3, None])
def test_keys_of_another_shape_do_no_harm(make_run, key, value):
    def change(result):
        with_secure_aggregation(result)[key] = value

    assert TITLE in report(make_run(change=change)).facts


def test_the_picture_of_the_coordinates_follows_the_theme_if_the_model_tells_the_sizes(make_run):
    folder = make_run(change=with_secure_aggregation)
    page = report(folder)
    assert not alts(page, "share of each layer")

    save_images(torch.rand(1, 3, 8, 12), folder / "coordinates.png")
    page = report(folder)
    (image,) = [image for image in page.named("img") if "share of each layer" in image["alt"]]
    assert base64.b64decode(image["src"].partition(",")[2]) == (folder / "coordinates.png").read_bytes()
    plain = len(page.named("source"))

    write_model(folder)
    page = report(folder)
    assert len(alts(page, "share of each layer")) == 1
    assert len(page.named("source")) == plain + 1


@pytest.mark.parametrize(
    "by_layer", [{"conv.weight": 901, "output.weight": 1}, {"other": 3}, {"conv.weight": -1}]
)
def test_counts_that_do_not_fit_the_model_are_not_drawn(make_run, by_layer):
    def change(result):
        with_secure_aggregation(result)["exchange"]["by_layer"] = by_layer

    folder = make_run(change=change)
    write_model(folder)
    assert not alts(report(folder), "share of each layer")


def test_a_picture_outside_of_the_run_folder_is_not_taken(make_run):
    def change(result):
        with_secure_aggregation(result)["exchange"]["picture"] = "../coordinates.png"

    folder = make_run(change=change)
    save_images(torch.rand(1, 3, 8, 12), folder.parent / "coordinates.png")
    assert not alts(report(folder), "share of each layer")


def test_privacy_spent_is_drawn_for_both_observers(make_run):
    folder = make_run(rounds=4, change=with_secure_aggregation)
    page = report(folder)
    assert labels(page, "ε by round") == ["ε by round, at the end: models only 4.00, the server 5.00"]
    assert "one client" in page.facts["epsilon-by-round"]
    assert page.values["epsilon-by-round"] == ""
    low = make_run(
        "low", rounds=4, change=lambda r: with_secure_aggregation(r)["config"]["dp"].update(epsilon=4)
    )
    assert report(low).values["epsilon-by-round"] == "server above budget"


def test_privacy_of_records_has_one_curve_and_its_own_budget(make_run):
    def change(result):
        result["config"]["choices"]["defense"] = "dp_sgd"
        result["config"]["defense"] = {"epsilon": 10.7, "noise_multiplier": None}
        for row in result["rounds"]:
            row["epsilon"] = row["epsilon_server"] = 0.5 * row["round"]
        result["summary"]["epsilon_unit"] = "record"

    folder = make_run(rounds=4, change=change)
    page = report(folder)
    assert labels(page, "ε by round") == ["ε by round, at the end: models or updates 2.00"]
    assert "one record" in page.facts["epsilon-by-round"]
    assert TITLE not in page.facts
    assert load_run(folder).budget == 10.7


def test_a_set_noise_multiplier_makes_the_epsilon_of_records_no_budget(make_run):
    def change(result):
        result["config"]["choices"]["defense"] = "dp_sgd"
        result["config"]["defense"] = {"epsilon": 10.7, "noise_multiplier": 1.1}

    assert load_run(make_run(change=change)).budget is None


def test_an_infinite_epsilon_is_told_and_not_drawn(make_run):
    def change(result):
        without_secure_aggregation(result)
        for row in result["rounds"]:
            row["epsilon_server"] = math.inf
        result["summary"]["epsilon_server"] = math.inf

    page = report(make_run(rounds=4, change=change))
    assert "ε = ∞" in page.facts["epsilon-server"]
    assert labels(page, "ε by round") == ["ε by round, at the end: models only 4.00"]


class TestAttacks:
    """The sum is what the server sees; one client's masked vector is noise."""

    @staticmethod
    def scored(result):
        with_secure_aggregation(result)
        masked, raw, total = result["attacks"]
        masked["psnr"], raw["psnr"], total["psnr"] = [9.0, 9.56], [30.0, 20.0], [12.0, 13.25]

    def test_the_cards_speak_of_the_sum_and_say_that_masks_are_noise(self, make_run):
        page = report(make_run(change=self.scored))
        would, does, *_ = page.cards.values()
        assert would.startswith("30.00 dB")
        assert does.startswith("13.25 dB")
        assert all(part in does for part in ("the sum of 3 clients", "ig", "round 1", "9.56 dB"))
        # other pictures are in the sum: no difference is told
        assert page.values["defense-effect"] == "not comparable"

    def test_without_a_sum_nothing_was_measured_but_the_guess_is_told(self, make_run):
        def change(result):
            self.scored(result)
            result["attacks"] = result["attacks"][:2]

        does = report(make_run(change=change)).cards["does-leak"]
        assert does.startswith("Not measured")
        assert "9.56 dB" in does

    def test_each_row_of_scores_says_what_was_attacked(self, make_run):
        def change(result):
            self.scored(result)
            # an adaptive guess behind a plain one is not under-tuned
            masked, _, total = result["attacks"]
            result["attacks"] += [
                {**masked, "adaptive": True, "psnr": [8.0, 8.0]},
                {**total, "adaptive": True, "psnr": [8.0, 8.0]},
                {**total, "summed": 4, "psnr": None, "ssim": None, "mse": None},
            ]

        page = report(make_run(batch=2, change=change))
        rows = page.table_with("PSNR")
        assert [(row["attack"], row["update"], row["client"], row["batch"]) for row in rows] == [
            ("ig", "one client under masks", "0", "2"),
            ("ig", "without the defense", "0", "2"),
            ("ig", "the sum of 3 clients", "3 together", "6"),
            ("ig (adaptive)", "one client under masks", "0", "2"),
            ("ig (adaptive, under-tuned)", "the sum of 3 clients", "3 together", "6"),
            ("ig", "the sum of 4 clients", "4 together", "6"),
        ]
        assert "summed" not in rows[0]
        assert "masked" in page.facts
        assert "-1" not in page.text

    def test_the_gallery_shows_both_and_names_the_row_of_an_unknown_original(self, make_run):
        def change(result):
            self.scored(result)
            result["attacks"][2] |= {"truth": None, "psnr": None, "ssim": None}

        page = report(make_run(change=change))
        galleries = [e for _, e in page.elements if e.get("class") == "gallery"]
        assert [grid["style"] for grid in galleries] == ["--columns: 2", "--columns: 3"]
        assert "ig, round 1, 3 clients, image 1: original not sent for audit" in page.text
        assert "sums-first" in page.facts

    def test_many_large_pictures_of_a_sum_leave_room_for_the_client(self, make_run):
        def change(result):
            with_secure_aggregation(result)["attacks"][2]["attack"] = "other"

        folder = make_run(batch=7, size=224, change=change)
        page = report(folder)
        assert (folder / "report.html").stat().st_size < 1_000_000
        assert len([e for _, e in page.elements if e.get("class") == "gallery"]) == 2
        assert "gallery-rest" in page.facts


def test_hostile_words_are_text(make_run):
    def change(result):
        with_secure_aggregation(result)
        result["exchange"] |= {"scheme": HOSTILE, "hash": HOSTILE, "by_layer": {HOSTILE: 1}}
        result["secure_aggregation"]["against"] = HOSTILE
        result["summary"]["epsilon_unit"] = HOSTILE
        result["notes"] = [f"stopped before round {HOSTILE}"]
        result["attacks"][2]["update"] = HOSTILE

    page = report(make_run(change=change))
    assert page.text.count(HOSTILE) >= 4
    assert page.foreign_scripts == 0


def test_runs_without_any_of_it_have_no_trace_of_it(make_run):
    page = report(make_run())
    assert not page.facts.keys() & {"server", "epsilon-by-round", "sums-first"}
    for word in ("under masks", "the sum of"):
        assert word not in page.text


def test_differences_of_weights_take_less_than_the_bound():
    """As the page says: after local steps the mantissas of an update end in zeros."""
    generator = torch.Generator().manual_seed(0)
    old = torch.randn(200, 100, generator=generator)
    new = old + 1e-3 * torch.randn(200, 100, generator=generator)
    update = {"w": new - old}
    assert len(encode(update)) < 0.8 * entropy_bound(update)
