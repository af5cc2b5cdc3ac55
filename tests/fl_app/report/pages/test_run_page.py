from __future__ import annotations

import copy
import json
import math
import shutil
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from parsed_page import ParsedPage
from PIL import Image
from run_folders import (
    read_result,
    with_secure_aggregation,
    with_two_classes,
    with_validation,
    write_run,
)

from fl_app.report import write_report
from fl_app.report.data.formats import format_bytes

CARDS = ["would-leak", "does-leak", "accuracy", "bytes"]
HOSTILE = "\"'><script>alert(1)</script><img src=x onerror=alert(2)>&amp;"


def report(folder: Path) -> ParsedPage:
    return ParsedPage(write_report(folder))


def test_writes_the_page_and_its_pictures_into_the_run_folder(make_run):
    folder = make_run()
    assert write_report(folder) == folder / "report.html"
    for name in ("accuracy.png", "bytes.png", "gallery.png"):
        with Image.open(folder / name) as picture:
            assert min(picture.size) > 300


def test_is_self_contained_and_the_same_each_time(make_run):
    folder = make_run()
    page = report(folder)
    first = (folder / "report.html").read_bytes()
    assert write_report(folder).read_bytes() == first
    assert len(first) < 1_000_000
    sources = [e[key] for _, e in page.elements for key in ("src", "srcset", "href") if key in e]
    assert len(sources) > 10
    assert all(source.startswith("data:image/png;base64,") for source in sources)
    markup = first.decode()
    assert not any(word in markup for word in ("http://", "https://", "url(", "@import"))
    assert page.foreign_scripts == 0
    assert not page.named("link")
    assert page.unbalanced == []


@pytest.mark.usefixtures("quick_charts")
class TestWords:
    def test_first_screen_answers_the_four_questions_with_the_numbers_of_the_run(self, make_run):
        folder = make_run(batch=3)
        result = read_result(folder)
        raw, sent = result["attacks"]
        cards = report(folder).cards
        assert list(cards) == CARDS
        would, does, accuracy, traffic = cards.values()
        assert f"{max(raw['psnr']):.2f} dB" in would
        assert f"SSIM {max(raw['ssim']):.3f}" in would
        assert f"{statistics.fmean(raw['psnr']):.2f} dB" in would
        assert f"{max(sent['psnr']):.2f} dB" in does
        assert f"{max(raw['psnr']) - max(sent['psnr']):.2f} dB" in does
        assert f"{result['summary']['accuracy']:.1%}".replace("%", " %") in accuracy
        assert f"{result['summary']['best_accuracy']:.1%}".replace("%", " %") in accuracy
        assert "fl-app-report A B" in accuracy
        up, down = result["summary"]["uplink_bytes"], result["summary"]["downlink_bytes"]
        dense = result["summary"]["dense_bytes"]
        assert f"{format_bytes(up)} up, {format_bytes(down)} down" in traffic
        assert f"{format_bytes(dense)}, both ways" in traffic
        assert f"{dense / (up + down):.3g}× fewer" in traffic
        assert f"up {dense / 2 / up:.3g}×, down {dense / 2 / down:.3g}×" in traffic

    def test_says_what_chose_the_best_round(self, make_run):
        folder = make_run("validated", change=with_validation)
        page, rounds = report(folder), read_result(folder)["rounds"]
        best = f"{100 * rounds[1]['accuracy']:.1f} %"
        assert all(part in page.cards["accuracy"] for part in (best, "validation", "round 2"))
        assert [row["validation"] for row in page.table_with("validation")][:3] == [
            "30.0 %",
            "80.0 %",
            "30.0 %",
        ]
        plain = report(make_run("plain"))
        assert "test" in plain.cards["accuracy"]
        assert "validation" not in plain.text

    def test_two_classes_have_a_balanced_accuracy_and_an_area(self, make_run):
        folder = make_run("two", change=with_two_classes)
        page, result = report(folder), read_result(folder)
        summary = result["summary"]
        balanced, area = f"{100 * summary['balanced_accuracy']:.1f} %", f"{summary['auroc']:.3f}"
        assert balanced in page.cards["accuracy"]
        assert area in page.cards["accuracy"]
        for row, entry in zip(page.table_with("AUROC"), result["rounds"], strict=True):
            assert row["balanced"] == f"{100 * entry['balanced_accuracy']:.1f} %"
            assert row["AUROC"] == f"{entry['auroc']:.3f}"
        assert "AUROC" not in report(make_run("many")).text

    def test_each_attack_has_its_worst_and_mean_scores(self, make_run):
        def change(result):
            result["attacks"][0]["lpips"] = [0.25, 0.5]

        folder = make_run(change=change)
        rows = report(folder).table_with("PSNR")
        for row, entry in zip(rows, read_result(folder)["attacks"], strict=True):
            mean = statistics.fmean
            assert row["PSNR"] == f"{max(entry['psnr']):.2f} dB mean {mean(entry['psnr']):.2f} dB"
            assert row["SSIM"] == f"{max(entry['ssim']):.3f} mean {mean(entry['ssim']):.3f}"
            # lower is closer to the original: the best for the attacker is the smallest
            assert row["MSE"] == f"{min(entry['mse']):.4g} mean {mean(entry['mse']):.4g}"
            assert (row["round"], row["client"], row["batch"]) == ("1", "0", "2")
        assert rows[0]["LPIPS"] == "0.250 mean 0.375"
        assert rows[1]["LPIPS"] == "not measured (weights missing)"

    def test_an_attack_on_transformed_images_is_compared_with_both(self, make_run):
        def change(result):
            sent = result["attacks"][1]
            sent["trained"] = {"psnr": [31.0, 29.0], "ssim": [0.9, 0.8], "images": sent["images"]}

        folder = make_run(change=change)
        page = report(folder)
        rows = page.table_with("PSNR")
        assert [row["update"] for row in rows] == [
            "without the defense",
            "with the defense",
            "what was trained on",
        ]
        assert rows[2]["PSNR"] == "31.00 dB mean 30.00 dB"
        assert "trained" in page.facts
        # the answer is about the originals
        assert f"{max(read_result(folder)['attacks'][1]['psnr']):.2f} dB" in page.cards[CARDS[1]]

    @pytest.mark.parametrize(("gain", "name"), [(-1.0, "ig (adaptive, under-tuned)"), (1.0, "ig (adaptive)")])
    def test_an_adaptive_attacker_that_does_worse_than_the_plain_one_is_flagged(self, make_run, gain, name):
        def change(result):
            sent = result["attacks"][1]
            psnr = [value + gain for value in sent["psnr"]]
            result["attacks"].append({**sent, "adaptive": True, "psnr": psnr})

        page = report(make_run(change=change))
        assert [row["attack"] for row in page.table_with("PSNR")] == ["ig", "ig", name]
        assert ("under-tuned" in page.facts) == (gain < 0)

    @pytest.mark.parametrize("gain", [-1.0, 1.0])
    def test_the_users_worst_case_is_the_closest_image_of_both_forms(self, make_run, gain):
        def change(result):
            sent = result["attacks"][1]
            result["attacks"].append({**sent, "adaptive": True, "psnr": [v + gain for v in sent["psnr"]]})

        folder = make_run(change=change)
        plain, adaptive = (attack["psnr"] for attack in read_result(folder)["attacks"][1:])
        card = report(folder).cards[CARDS[1]]
        assert f"{max(plain + adaptive):.2f} dB" in card
        # both forms rebuild the same pictures: their mean is that of one form
        stronger = max(statistics.fmean(plain), statistics.fmean(adaptive))
        assert f"{stronger:.2f} dB" in card
        assert ("(adaptive)" in card) == (gain > 0)

    def test_says_which_attacked_client_named_the_locations(self, make_run):
        def change(result):
            result["attacks"][1]["broadcaster"] = True

        rows = report(make_run(change=change)).table_with("PSNR")
        assert [row["client"] for row in rows] == ["0", "0 (named the locations)"]

    def test_shows_the_distance_to_the_entropy_bound(self, make_run):
        def change(result):
            result["rounds"][4] |= {"uplink_to_bound": 1.0123, "downlink_to_bound": 1.2}

        page = report(make_run(change=change))
        assert all(part in page.facts["entropy-bound"] for part in ("round 5", "1.012", "1.200"))
        assert page.table_with("up / bound")[4]["up / bound"] == "1.012"
        assert "entropy-bound" not in report(make_run("other")).facts

    def test_shows_the_notes_of_rounds_the_first_ones_openly(self, make_run):
        def change(result):
            for row in result["rounds"]:
                row["notes"] = [f"client {row['round']} was outvoted", "twice"]

        page = report(make_run(change=change))
        assert "round 1: client 1 was outvoted" in page.text
        assert "12 more" in page.text

    def test_says_that_the_users_worst_case_is_the_attackers_best(self, make_run):
        assert "worst-case" in report(make_run()).facts

    def test_says_what_the_attacker_was_granted(self, make_run):
        page = report(make_run(batch=5))
        assert "audit.batch_size=5" in page.text
        given, withheld = page.facts["granted"].split("Not granted:")
        assert all(part in given for part in ("labels", "(5)", "(train)"))
        assert "BatchNorm" in withheld

    def test_shows_notes_failures_configuration_and_versions(self, make_run):
        def change(result):
            result["rounds"][2]["failures"] = [{"client": 3, "reason": "blob too short"}]

        page = report(make_run(change=change))
        assert page.table_with("reason") == [{"round": "3", "client": "3", "reason": "blob too short"}]
        assert {"package": "torch", "version": "2.13.0"} in page.table_with("package")
        assert "seed: 0 rounds: 12 lr: 0.1" in page.text
        assert "one local step, treated as a gradient" in page.text
        assert "noise replayable from the seed" in page.text

    def test_all_rounds_are_listed_with_their_numbers(self, make_run):
        folder = make_run(rounds=4)
        rows = report(folder).table_with("train loss")
        for row, entry in zip(rows, read_result(folder)["rounds"], strict=True):
            assert row["round"] == str(entry["round"])
            assert row["accuracy"] == f"{100 * entry['accuracy']:.1f} %"
            assert row["up"] == format_bytes(entry["uplink_bytes"])
            assert row["down"] == format_bytes(entry["downlink_bytes"])
            assert row["residual"] == f"{entry['residual_norm']:.4g}"

    @pytest.mark.parametrize("status", ["interrupted", "failed", None])
    def test_a_run_that_did_not_finish_carries_a_banner(self, make_run, status):
        folder = make_run(change=lambda result: result.update(status=status, error="the grid was lost"))
        page = report(folder)
        assert [e for _, e in page.elements if e.get("role") == "alert"]
        assert "the grid was lost" in page.text
        assert (
            f"This run {'was interrupted' if status == 'interrupted' else 'failed'}" in page.text
            or status is None
        )

    def test_a_finished_run_carries_none(self, make_run):
        assert not [e for _, e in report(make_run()).elements if e.get("role") == "alert"]

    def test_an_attack_without_an_audit_is_shown_but_not_scored(self, make_run):
        def change(result):
            result["attacks"] = result["attacks"][1:]
            result["attacks"][0].update(psnr=None, ssim=None, mse=None, truth=None)

        page = report(make_run(change=change))
        assert page.cards["would-leak"].startswith("Not measured")
        assert "audit.contrast=true" in page.cards["would-leak"]
        assert page.cards["does-leak"].startswith("Not scored")
        assert {row["PSNR"] for row in page.table_with("PSNR")} == {"–"}
        assert "original not sent for audit" in page.text

    def test_a_run_without_an_attack_says_so(self, make_run):
        def change(result):
            result["attacks"] = []
            result["config"]["choices"]["attack"] = "none"

        page = report(make_run(change=change))
        for question in CARDS[:2]:
            assert page.cards[question].startswith("Not measured")
        assert "attack=none" in page.text

    def test_a_defense_that_did_not_help_is_called_so(self, make_run):
        def change(result):
            result["attacks"][0]["psnr"], result["attacks"][1]["psnr"] = [10.0, 9.0], [12.5, 8.0]

        page = report(make_run(change=change))
        assert page.values["defense-effect"] == "did not help"
        assert "2.50 dB" in page.facts["defense-effect"]

    def test_an_undefended_run_does_not_speak_of_its_defense(self, make_run):
        page = report(make_run(defense="none"))
        assert "with the defense" not in page.text
        assert "defense-effect" not in page.facts
        assert "as sent, no defense" in page.text

    def test_an_exact_reconstruction_is_infinite_not_broken(self, make_run):
        page = report(make_run(change=lambda result: result["attacks"][0].update(psnr=[math.inf, 20.0])))
        assert page.cards["would-leak"].startswith("∞ dB")
        assert page.values["defense-effect"] == "from exact"

    def test_an_attack_on_labels_alone_is_told_by_its_labels(self, make_run):
        def change(result):
            for entry in result["attacks"]:
                entry.update(psnr=None, ssim=None, mse=None, images=None, truth=None, labels_from="update")
                entry["labels"] = {"precision": 1.0, "recall": 0.5, "f1": 0.6667, "exact": False}

        page = report(make_run(change=change))
        assert page.cards["does-leak"].startswith("Labels: F1 0.667")
        assert page.table_with("labels")[0]["labels"] == "P 1.00, R 0.50, F1 0.67, exact 0.00"
        assert "gallery" not in {e.get("class") for _, e in page.elements}

    def test_other_scores_get_a_column(self, make_run):
        def change(result):
            for entry in result["attacks"]:
                entry.update(psnr=None, ssim=None, mse=None, images=None, truth=None, wer=0.125)

        page = report(make_run(change=change))
        assert page.cards["does-leak"].startswith("wer 0.125")
        assert [row["wer"] for row in page.table_with("wer")] == ["0.125", "0.125"]

    def test_the_most_that_leaked_over_all_attacks_is_what_counts(self, make_run):
        def change(result):
            result["attacks"].append(
                {**result["attacks"][1], "attack": "dlg", "client": 4, "psnr": [3.0, 33.25]}
            )

        card = report(make_run(change=change)).cards["does-leak"]
        assert card.startswith("33.25 dB")
        assert "dlg" in card
        assert "client 4" in card

    def test_hostile_text_is_shown_and_never_run(self, make_run):
        def change(result):
            result.update(status="failed", error=HOSTILE, notes=[HOSTILE], versions={HOSTILE: HOSTILE})
            result["rounds"][0]["failures"] = [{"client": HOSTILE, "reason": HOSTILE}]
            result["config"]["choices"] = dict.fromkeys(result["config"]["choices"], HOSTILE)
            for entry in result["attacks"]:
                entry.update(attack=HOSTILE, client=HOSTILE, notes=[HOSTILE], granted={HOSTILE: HOSTILE})
                entry["labels_from"] = HOSTILE

        folder = make_run(change=change)
        (folder / "config.yaml").write_text(HOSTILE)
        page = report(folder)
        assert page.table_with("reason")[0]["reason"] == HOSTILE
        assert page.text.count("<script>alert(1)</script>") > 10
        assert page.foreign_scripts == 0
        assert not [e for _, e in page.elements if "onerror" in e or e.get("src") == "x"]
        assert page.unbalanced == []

    def test_many_large_pictures_do_not_blow_up_the_page(self, make_run):
        folder = make_run(batch=7, size=224)
        page = report(folder)
        assert (folder / "report.html").stat().st_size < 1_000_000
        shown = sum("original:" in e.get("alt", "") for e in page.named("img"))
        assert 0 < shown < 7
        assert str(7 - shown) in page.facts["gallery-rest"]


def paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if path:
        yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from paths(inner, (*path, key))


ODD_VALUES = [
    None,
    "text",
    -1,
    0,
    1e300,
    10**400,
    math.nan,
    math.inf,
    True,
    [],
    {},
    [None],
    ["a"],
    {"x": [1]},
]
DELETE = "delete"


def damage(result: Any, path: tuple[Any, ...], value: Any) -> None:
    for key in path[:-1]:
        try:
            result = result[key]
        except (KeyError, IndexError, TypeError):
            return
    try:
        if value is DELETE:
            del result[path[-1]]
        else:
            # a copy: later damage may go into this very value
            result[path[-1]] = copy.deepcopy(value)
    except (KeyError, IndexError, TypeError):
        return


@pytest.fixture(scope="module")
def small_run(tmp_path_factory) -> Path:
    def change(result):
        result["rounds"][0]["failures"] = [{"client": 3, "reason": "late"}]
        for entry in result["attacks"]:
            entry["labels"] = {"precision": 1.0, "recall": 0.5, "f1": 0.6667, "exact": False}
            entry["lpips"] = [0.1]
        plain = result["attacks"]
        result |= with_secure_aggregation(copy.deepcopy(result))
        result["attacks"] = plain + result["attacks"]

    return write_run(tmp_path_factory.mktemp("small"), rounds=2, batch=1, size=8, change=change)


def damages(folder: Path) -> st.SearchStrategy[list[tuple[tuple[Any, ...], Any]]]:
    places = list(paths(read_result(folder)))
    return st.lists(
        st.tuples(st.sampled_from(places), st.sampled_from([*[DELETE] * 6, *ODD_VALUES])),
        min_size=1,
        max_size=12,
    )


def page_of_damaged(
    folder: Path, pristine: dict[str, Any], changes: list[tuple[tuple[Any, ...], Any]]
) -> ParsedPage:
    result = json.loads(json.dumps(pristine))
    for path, value in changes:
        damage(result, path, value)
    (folder / "result.json").write_text(json.dumps(result))
    return report(folder)


@pytest.mark.usefixtures("quick_charts")
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_whatever_is_missing_or_misshapen_there_is_a_page(small_run, tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("copy")
    shutil.copytree(small_run, folder, dirs_exist_ok=True)
    page = page_of_damaged(folder, read_result(small_run), data.draw(damages(small_run)))
    assert list(page.cards) == CARDS
    assert page.unbalanced == []
    assert "nan" not in page.text.lower().split()


@settings(max_examples=3, deadline=None, derandomize=True)
@given(data=st.data())
def test_charts_of_damaged_results_can_be_drawn(small_run, tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("copy")
    shutil.copytree(small_run, folder, dirs_exist_ok=True)
    page = page_of_damaged(folder, read_result(small_run), data.draw(damages(small_run)))
    assert list(page.cards) == CARDS


@pytest.mark.usefixtures("quick_charts")
def test_an_empty_result_gives_a_page_of_dashes(tmp_path):
    (tmp_path / "result.json").write_text("{}")
    page = report(tmp_path)
    assert list(page.cards) == CARDS
    assert all(card.startswith("Not ") for card in page.cards.values())
    assert "not known" in page.text
