from fl_app.audit.what_if import Variant, frontier


def row(name, leak, value, metric="accuracy"):
    return Variant(name, leak, metric, value, 1)


def test_a_row_that_another_beats_in_both_is_off_the_frontier():
    rows = [row("none", 0.9, 0.80), row("topk", 0.5, 0.79), row("bad", 0.6, 0.70), row("sign", 0.2, 0.5)]
    assert frontier(rows) == ["none", "topk", "sign"]


def test_a_lower_loss_is_better():
    rows = [row("none", 0.9, 0.3, "eval_loss"), row("worse", 0.9, 0.5, "eval_loss")]
    assert frontier(rows) == ["none"]


def test_rows_without_a_measure_are_on_no_frontier():
    assert frontier([row("none", None, 0.3), row("topk", 0.2, None)]) == []
