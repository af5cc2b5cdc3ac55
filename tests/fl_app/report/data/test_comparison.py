from __future__ import annotations

import math
import statistics
from pathlib import Path
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st
from parsed_page import ParsedPage
from rich.console import Console
from run_folders import read_result, with_secure_aggregation, with_two_classes, with_validation

from fl_app.report import compare_runs, comparison_rows, comparison_table, find_runs, write_report
from fl_app.report.data.comparison import show_spread, spread_of
from fl_app.report.data.formats import format_bytes, format_percent


@pytest.fixture
def three_seeds(make_run) -> list[Path]:
    return [make_run(f"seed{s}", seed=s, rounds=3) for s in range(3)]


def terminal_table(runs: list[Path], width: int = 140) -> str:
    console = Console(width=width)
    with console.capture() as capture:
        console.print(comparison_table(comparison_rows(runs), width))
    return capture.get()


@pytest.mark.parametrize("width", [60, 80, 100, 140])
def test_names_stay_in_a_narrow_terminal_and_left_out_numbers_are_named(make_run, width):
    runs = [
        make_run(f"{name}{s}", defense=name, seed=s, rounds=3) for name in ("dgp", "topk") for s in range(2)
    ]
    printed = terminal_table(runs, width)
    assert all(len(line.rstrip()) <= width for line in printed.splitlines())
    rows = comparison_rows(runs)
    for name in {word for row in rows for word in (row.defense, row.model, row.data)}:
        assert name in printed
    assert printed.count("0, 1") == 2
    told = "".join(printed.split())
    assert all(title in told for title in ("accuracy", "up/round", "leakwith", "seconds"))


def with_k(k: float):
    return lambda result: result["config"].update(defense={"topk": {"k": k}})


def test_seeds_of_one_configuration_share_a_row_with_mean_and_deviation(three_seeds):
    (row,) = comparison_rows(three_seeds)
    results = [read_result(run) for run in three_seeds]
    assert row.seeds == ("0", "1", "2")

    def check(spread, values):
        assert spread.mean == pytest.approx(statistics.mean(values))
        assert spread.std == pytest.approx(statistics.stdev(values))

    check(row.accuracy, [r["summary"]["accuracy"] for r in results])
    check(row.best_accuracy, [r["summary"]["best_accuracy"] for r in results])
    check(row.uplink_per_round, [r["summary"]["uplink_bytes"] / 3 for r in results])
    check(row.seconds, [r["summary"]["seconds"] for r in results])
    for leak, index in ((row.undefended, 0), (row.defended, 1)):
        for name in ("psnr", "ssim"):
            scores = [r["attacks"][index][name] for r in results]
            check(leak.worst[name], [max(s) for s in scores])
            check(leak.mean[name], [statistics.mean(s) for s in scores])
        assert leak.worst["lpips"] is None
        assert leak.lpips_missing


def test_a_single_seed_has_no_deviation(make_run):
    (row,) = comparison_rows([make_run()])
    assert row.accuracy.std is None
    assert "±" not in show_spread(row.accuracy, format_percent)


@given(st.lists(st.one_of(st.none(), st.floats(-1e6, 1e6)), max_size=8))
def test_spread_is_that_of_the_statistics_module_over_what_is_known(values):
    known = [value for value in values if value is not None]
    spread = spread_of(values)
    if not known:
        assert spread is None
        return
    assert spread.mean == pytest.approx(statistics.mean(known), abs=1e-6)
    assert spread.std == (pytest.approx(statistics.stdev(known), abs=1e-6) if len(known) > 1 else None)


def test_spread_of_an_exact_reconstruction_is_infinite_without_a_deviation():
    assert spread_of([math.inf, 20.0]) == (math.inf, None)


def test_a_unit_is_written_once_if_both_numbers_have_it():
    assert show_spread(spread_of([0.5, 0.6]), format_percent) == "55.0 ± 7.1 %"
    assert show_spread(spread_of([10_000.0, 10_100.0]), format_bytes) == "10.1 kB ± 71 B"
    assert show_spread(None, format_percent) == "–"


def test_other_settings_make_another_row_that_says_how_it_differs(make_run):
    runs = [
        make_run("a", defense="topk", change=with_k(0.1)),
        make_run("b", defense="topk", change=with_k(0.01)),
        make_run("c", defense="dgp"),
    ]
    rows = comparison_rows(runs)
    assert [row.defense for row in rows] == ["topk", "topk", "dgp"]
    assert [row.differs for row in rows] == ["defense.topk.k=0.1", "defense.topk.k=0.01", ""]


def test_runs_cut_short_are_not_averaged_with_complete_ones(make_run):
    runs = [
        make_run("a", seed=0),
        make_run("b", seed=1, change=lambda result: result.update(status="interrupted")),
    ]
    assert [row.status for row in comparison_rows(runs)] == ["finished", "interrupted"]


def test_bytes_are_per_round_and_against_dense_of_the_same_direction(make_run, tmp_path):
    folder = make_run(rounds=5)
    summary = read_result(folder)["summary"]
    (row,) = ParsedPage(compare_runs([folder], tmp_path / "c.html")).tables[0][2:]
    up, down = summary["uplink_bytes"], summary["downlink_bytes"]
    half = summary["dense_bytes"] / 2
    assert row[6] == f"{format_bytes(up / 5)} {half / up:.3g}×"
    assert row[7] == f"{format_bytes(down / 5)} {half / down:.3g}×"


def test_the_page_shows_every_number_of_a_row(three_seeds, make_run, tmp_path):
    single = make_run("other", defense="none", change=lambda r: r["attacks"][1].update(lpips=[0.2, 0.4]))
    page = ParsedPage(compare_runs([*three_seeds, single], tmp_path / "c.html"))
    groups, titles, first, second = page.tables[0]
    assert groups == ["", "leak without the defense", "leak with the defense", ""]
    assert len(titles) == len(first) == len(second)
    assert titles[:6] == ["defense", "model", "data", "seeds", "accuracy", "best"]
    results = [read_result(run) for run in three_seeds]
    accuracy = [100 * r["summary"]["accuracy"] for r in results]
    assert first[:4] == ["dgp", "lenet", "photos", "0, 1, 2"]
    assert first[4] == f"{statistics.mean(accuracy):.1f} ± {statistics.stdev(accuracy):.1f} %"
    worst = [max(r["attacks"][1]["psnr"]) for r in results]
    means = [statistics.mean(r["attacks"][1]["psnr"]) for r in results]
    assert titles[11] == "PSNR (dB)"
    assert first[11] == (
        f"{statistics.mean(worst):.2f} ± {statistics.stdev(worst):.2f} "
        f"{statistics.mean(means):.2f} ± {statistics.stdev(means):.2f}"
    )
    assert titles[13] == "LPIPS"
    assert (first[13], second[13]) == ("not measured", "0.200 0.300")
    assert "LPIPS not measured (weights missing)" in page.text
    assert page.unbalanced == []


def test_best_accuracies_say_what_chose_them(make_run, tmp_path):
    runs = [make_run("a", change=with_validation), make_run("b", defense="none")]
    page = ParsedPage(compare_runs(runs, tmp_path / "c.html"))
    best = [100 * read_result(run)["summary"]["best_accuracy"] for run in runs]
    assert [row[5] for row in page.tables[0][2:]] == [
        f"{best[0]:.1f} % by validation",
        f"{best[1]:.1f} % by test",
    ]
    text = terminal_table(runs)
    assert f"{best[0]:.1f} val." in text
    assert f"{best[1]:.1f} test" in text


def test_scores_of_two_classes_are_shown_where_there_are_two(make_run, tmp_path):
    def two(result):
        with_two_classes(result)

    def many(result):
        # every task has it, but it is shown beside the area alone
        result["summary"]["balanced_accuracy"] = 0.1234

    runs = [make_run(f"two{seed}", seed=seed, change=two) for seed in range(2)]
    runs.append(make_run("many", defense="none", change=many))
    _, titles, first, second = ParsedPage(compare_runs(runs, tmp_path / "c.html")).tables[0]
    assert titles[5:9] == ["best", "balanced", "AUROC", "up / round"]
    summaries = [read_result(run)["summary"] for run in runs[:2]]
    balanced, area = ([summary[key] for summary in summaries] for key in ("balanced_accuracy", "auroc"))
    assert first[6] == f"{100 * statistics.mean(balanced):.1f} ± {100 * statistics.stdev(balanced):.1f} %"
    assert first[7] == f"{statistics.mean(area):.3f} ± {statistics.stdev(area):.3f}"
    assert second[6:8] == ["–", "–"]
    text = terminal_table(runs)
    assert f"{100 * statistics.mean(balanced):.1f}±{100 * statistics.stdev(balanced):.1f}" in text
    assert f"{statistics.mean(area):.3f}±{statistics.stdev(area):.3f}" in text
    assert "12.3" not in text
    _, titles, *_ = ParsedPage(compare_runs(runs[2:], tmp_path / "d.html")).tables[0]
    assert "AUROC" not in titles
    assert "AUROC" not in terminal_table(runs[2:])


def test_the_sum_is_what_leaks_under_secure_aggregation_and_the_server_has_an_epsilon(make_run, tmp_path):
    def secure(result):
        with_secure_aggregation(result)
        masked, _, total = result["attacks"]
        masked["psnr"], total["psnr"] = [40.0, 41.0], [12.0, 13.25]
        result["summary"] |= {"epsilon": 2.996, "epsilon_server": 22.181}

    def noisy(result):
        secure(result)
        result["attacks"] = []
        result["config"]["choices"]["secagg"] = "off"
        result["summary"] |= {"epsilon_server": None}

    runs = [make_run("a", change=secure), make_run("b", change=noisy), make_run("c", defense="topk")]
    rows = comparison_rows(runs)
    assert [row.defense for row in rows] == ["fl_top + dp=client + secagg=on", "fl_top + dp=client", "topk"]
    assert [row.of_sums for row in rows] == [True, False, False]
    assert rows[0].defended.worst["psnr"].mean == 13.25
    page = ParsedPage(compare_runs(runs, tmp_path / "c.html"))
    _, titles, *cells = page.tables[0]
    first, second, third = (dict(zip(titles[14:], row[14:], strict=True)) for row in cells)
    assert (first["ε"], first["ε server"], first["seconds"]) == ("3.00", "22.18", "3.0")
    # by the last round, as the summary does not tell
    assert second["ε server"] == f"{2.5 * 12**0.5:.2f}"
    assert (third["ε"], third["ε server"]) == ("–", "–")
    assert page.text.count("fl_top + dp=client + secagg=on") > 1
    text = terminal_table(runs)
    assert "13.25" in text
    assert text.count("of a sum") == 1
    assert "3.00" in text
    assert "22.18" in text
    plain = ParsedPage(compare_runs(runs[2:], tmp_path / "d.html"))
    assert not any(words in plain.text for words in ("secure aggregation", "is against the server"))


def test_the_page_loads_nothing_and_its_script_is_allowed_by_its_hash(make_run, tmp_path):
    path = compare_runs([make_run()], tmp_path / "c.html")
    page = ParsedPage(path)
    markup = path.read_text()
    assert not any(word in markup for word in ("http://", "https://", "url(", "@import"))
    assert all(image["src"].startswith("data:image/png;base64,") for image in page.named("img"))
    assert [chart["class"] for chart in page.named("svg")][-1] == "live"
    policy = next(
        m["content"] for m in page.named("meta") if m.get("http-equiv") == "Content-Security-Policy"
    )
    assert policy.startswith("default-src 'none'; ")
    assert "script-src 'sha256-" in policy


def test_seeds_link_to_their_reports_by_a_relative_path(make_run, tmp_path):
    odd = make_run("a run #1/50%", rounds=2)
    write_report(odd)
    bare = make_run("bare", rounds=2, seed=1)
    (tmp_path / "out").mkdir()
    path = compare_runs([odd, bare], tmp_path / "out")
    assert path == tmp_path / "out" / "comparison.html"
    (link,) = ParsedPage(path).named("a")
    assert (path.parent / unquote(link["href"])).resolve() == (odd / "report.html").resolve()


def test_empty_results_can_be_compared(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run/result.json").write_text("{}")
    page = ParsedPage(compare_runs(find_runs([tmp_path]), tmp_path / "c.html"))
    assert page.tables[0][2][:5] == ["unknown status not known", "–", "–", "–", "–"]


def test_comparing_nothing_is_refused(tmp_path):
    with pytest.raises(ValueError, match="compare_runs: expected at least one run folder"):
        compare_runs([], tmp_path / "c.html")


def test_hostile_names_are_text_in_the_page_and_in_the_terminal(make_run, tmp_path):
    name = "<script>alert(1)</script>[red]x[/]"
    run = make_run(defense=name)
    page = ParsedPage(compare_runs([run], tmp_path / "c.html"))
    assert page.tables[0][2][0] == name
    assert len(page.named("script")) == 1
    assert name in terminal_table([run], width=200)


def test_the_terminal_table_shows_the_same_numbers(three_seeds):
    results = [read_result(run) for run in three_seeds]
    accuracy = [100 * r["summary"]["accuracy"] for r in results]
    leak = [max(r["attacks"][1]["psnr"]) for r in results]
    text = terminal_table(three_seeds)
    assert f"{statistics.mean(accuracy):.1f}±{statistics.stdev(accuracy):.1f}" in text
    assert f"{statistics.mean(leak):.2f}±{statistics.stdev(leak):.2f}" in text
    assert "0, 1, 2" in text
