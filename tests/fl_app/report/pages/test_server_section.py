"""What a report says of the server: what it is sent, what it learns, what privacy costs."""

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

TITLE = "What the server can learn"
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


def alts(page: ParsedPage, words: str) -> list[str]:
    return [image["alt"] for image in page.named("img") if words in image["alt"]]


def test_all_that_bounds_the_server_is_told_with_the_numbers_of_the_run(make_run):
    folder = make_run(rounds=4, change=with_secure_aggregation)
    text = report(folder).text
    assert TITLE in text
    assert "4 747 of the model's 15 826 values, or 30 %." in text
    assert "chosen on public samples" in text
    assert "On. The server learns the sum" in text
    assert "No round starts with fewer than 3 of them." in text
    assert "Covered: an honest-but-curious server, which follows the protocol" in text
    assert "Not covered: an active server" in text
    assert "Never covered: the sum itself" in text
    assert "differences of sums" in text
    assert "docs/secure-aggregation.md" in text
    assert "ε = 4.00 against whoever sees only the models" in text
    assert "stays secret who takes part in a round (each client by a chance of 40 %)" in text
    assert "ε = 5.00 against the server, which knows who takes part" in text
    assert "It sees sums only" in text
    assert "δ is 1e-05." in text
    assert "Noise multiplier 1.5" in text
    assert "keeps it whoever drops out" in text
    assert "Clipping bound 0.0641: no client's vector is longer (L2 norm), a bound that was learnt" in text
    assert "Poisson sampling: a coin of its own" in text
    assert "can be replayed from the seed" in text
    assert "The budget is ε = 20 against whoever sees only the models; training did not have to stop" in text


def test_identities_withstand_an_active_server(make_run):
    def change(result):
        with_secure_aggregation(result)["secure_aggregation"]["against"] = "active server"

    text = report(make_run(change=change)).text
    assert "Covered: an active server, which breaks the rules, together with fewer than a third" in text
    assert "Not covered: an active server together with a third of the clients or more." in text
    assert "Never covered: the sum itself" in text


def test_without_secure_aggregation_it_is_said_how_little_noise_the_server_faces(make_run):
    folder = make_run(rounds=4, change=without_secure_aggregation)
    text = report(folder).text
    assert "Off. The server sees the vector of every client by itself." in text
    # four of ten clients are expected: half of the noise multiplier
    assert "1.5 / √4 = 0.75 times the clipping bound, with 4 clients expected in a round" in text
    assert "ε 1.2 times the other one" in text
    assert "Never covered" not in text
    assert "whoever drops out" not in text


def test_other_settings_of_the_noise_are_told(make_run):
    def change(result):
        with_secure_aggregation(result)
        result["config"]["dp"] |= {"sampling": "fixed", "share": "cohort", "clip": 0.5, "rate": 1.0}
        result["privacy"]["replayable"] = False
        result["notes"] = ["stopped before round 5: it would bring epsilon to 20.4, the budget is 20"]

    text = report(make_run(change=change)).text
    assert "ε is computed as if Poisson" in text
    assert "complete only if no client drops out" in text
    assert "learnt from public samples" not in text
    assert "All clients take part in every round." in text
    assert "comes from the operating system" in text
    assert "Training stopped at the budget: stopped before round 5: it would bring epsilon to 20.4" in text
    assert "did not have to stop" not in text


@pytest.mark.parametrize(
    ("scheme", "words"),
    [
        ("FLStd", "15 826 values, or 100 %. That is its whole update"),
        ("FLBasic", "drawn anew in every round"),
        ("FLCS", "random measurements"),
        ("Other", "Other"),
    ],
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
    assert words in page.text
    assert "None. There is no noise" in page.text
    assert not alts(page, "share of each layer")
    assert not alts(page, "ε by round")


@pytest.mark.parametrize("kept", [(), *[(key,) for key in KEYS], KEYS[:2], KEYS[1:]])
def test_keys_that_are_missing_leave_a_page_without_what_they_said(make_run, kept):
    def change(result):
        with_secure_aggregation(result)
        for key in KEYS:
            if key not in kept:
                del result[key]

    text = report(make_run(change=change)).text
    assert (TITLE in text) == bool(kept)
    assert ("values, or 30 %" in text) == ("exchange" in kept)
    assert ("Clipping bound" in text) == ("privacy" in kept)
    assert ("honest-but-curious" in text) == ("secure_aggregation" in kept)
    # the choice says that it was on, even if nothing else does
    assert "Off. The server sees" not in text


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("value", [{}, [], "text", 3, None])
def test_keys_of_another_shape_do_no_harm(make_run, key, value):
    def change(result):
        with_secure_aggregation(result)[key] = value

    assert TITLE in report(make_run(change=change)).text


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
    assert alts(page, "ε by round") == ["ε by round, at the end: models only 4.00, the server 5.00"]
    assert "ε of one client after each round" in page.text
    assert "The budget does not bind the server's." not in page.text
    low = make_run(
        "low", rounds=4, change=lambda r: with_secure_aggregation(r)["config"]["dp"].update(epsilon=4)
    )
    assert "The budget does not bind the server's." in report(low).text


def test_privacy_of_records_has_one_curve_and_its_own_budget(make_run):
    def change(result):
        result["config"]["choices"]["defense"] = "dp_sgd"
        result["config"]["defense"] = {"epsilon": 10.7, "noise_multiplier": None}
        for row in result["rounds"]:
            row["epsilon"] = row["epsilon_server"] = 0.5 * row["round"]
        result["summary"]["epsilon_unit"] = "record"

    folder = make_run(rounds=4, change=change)
    page = report(folder)
    assert alts(page, "ε by round") == ["ε by round, at the end: models or updates 2.00"]
    assert "ε of one record after each round" in page.text
    assert TITLE not in page.text
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
    assert "ε = ∞ against the server" in page.text
    assert alts(page, "ε by round") == ["ε by round, at the end: models only 4.00"]


class TestAttacks:
    """The sum is what the server sees; one client's masked vector is noise."""

    @staticmethod
    def scored(result):
        with_secure_aggregation(result)
        masked, raw, total = result["attacks"]
        masked["psnr"], raw["psnr"], total["psnr"] = [9.0, 9.56], [30.0, 20.0], [12.0, 13.25]

    def test_the_cards_speak_of_the_sum_and_say_that_masks_are_noise(self, make_run):
        would, does, *_ = report(make_run(change=self.scored)).cards.values()
        assert would.startswith("30.00 dB")
        assert does.startswith("13.25 dB")
        assert "From the sum of 3 clients, attack ig rebuilt this picture of one of them (round 1" in does
        assert "From one client under masks the attacker's best is 9.56 dB: that is a guess" in does
        # other pictures are in the sum: no difference is told
        assert "took" not in does
        assert "not comparable with the raw update's" in does

    def test_without_a_sum_nothing_was_measured_but_the_guess_is_told(self, make_run):
        def change(result):
            self.scored(result)
            result["attacks"] = result["attacks"][:2]

        does = report(make_run(change=change)).cards["What does leak?"]
        assert does.startswith("Not measured No sum of clients was attacked.")
        assert "9.56 dB: that is a guess" in does

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
        assert "under its masks that is uniform noise" in page.text
        assert "-1" not in page.text

    def test_the_gallery_shows_both_and_names_the_row_of_an_unknown_original(self, make_run):
        def change(result):
            self.scored(result)
            result["attacks"][2] |= {"truth": None, "psnr": None, "ssim": None}

        page = report(make_run(change=change))
        galleries = [e for _, e in page.elements if e.get("class") == "gallery"]
        assert [grid["style"] for grid in galleries] == ["--columns: 2", "--columns: 3"]
        assert "ig, round 1, 3 clients, image 1: original not sent for audit" in page.text
        assert "First come the sums" in page.text

    def test_many_large_pictures_of_a_sum_leave_room_for_the_client(self, make_run):
        def change(result):
            with_secure_aggregation(result)["attacks"][2]["attack"] = "other"

        folder = make_run(batch=7, size=224, change=change)
        page = report(folder)
        assert (folder / "report.html").stat().st_size < 1_000_000
        assert len([e for _, e in page.elements if e.get("class") == "gallery"]) == 2
        assert "more rows are in the attacks folder" in page.text


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
    assert not page.named("script")


def test_runs_without_any_of_it_have_no_trace_of_it(make_run):
    text = report(make_run()).text
    for word in (TITLE, "Privacy spent", "under masks", "the sum of", "First come the sums"):
        assert word not in text


def test_differences_of_weights_take_less_than_the_bound():
    """As the page says: after local steps the mantissas of an update end in zeros."""
    generator = torch.Generator().manual_seed(0)
    old = torch.randn(200, 100, generator=generator)
    new = old + 1e-3 * torch.randn(200, 100, generator=generator)
    update = {"w": new - old}
    assert len(encode(update)) < 0.8 * entropy_bound(update)
