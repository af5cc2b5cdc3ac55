import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attacks.active.fill_in import fill_in, largest_withheld
from attacks.active.pruned_rows import merge_rows
from fl_app.transforms import keep_topk, prune_dual
from fl_app.types import Observation

FEATURES = 150


def draw(seed: int, samples: int, rows: int, kept: float):
    """Rows that are multiples of one of the samples, with some of their entries withheld at random."""
    generator = torch.Generator().manual_seed(seed)
    truth = torch.randn(samples, FEATURES, generator=generator, dtype=torch.float64)
    owners = torch.randint(samples, (rows,), generator=generator)
    signals = torch.randn(rows, generator=generator, dtype=torch.float64)
    sent = torch.rand(rows, FEATURES, generator=generator) < kept
    rounded = (signals[:, None] * truth[owners]).float().double()
    return truth, owners, torch.where(sent, rounded, 0), sent


@given(
    seed=st.integers(0, 10_000),
    samples=st.integers(1, 4),
    rows=st.integers(1, 14),
    kept=st.floats(0.1, 1),
)
@settings(max_examples=40, deadline=None)
def test_groups_are_the_rows_that_are_linked_by_common_survivors(seed, samples, rows, kept):
    truth, owners, weight, sent = draw(seed, samples, rows, kept)
    groups = merge_rows(weight, sent)
    # brute force: rows of one sample that share enough entries are linked, and so are their links
    linked = (owners[:, None] == owners) & ((sent.long() @ sent.long().t()) >= 24)
    linked |= torch.eye(rows, dtype=torch.bool)
    for _ in range(rows):
        linked = (linked.long() @ linked.long()) > 0
    live = [row for row in range(rows) if weight[row].any()]
    expected = {frozenset(linked[row].nonzero().flatten().tolist()) for row in live}
    assert {frozenset(group.rows.tolist()) for group in groups} == expected
    for group in groups:
        true = truth[owners[group.rows[0]]]
        torch.testing.assert_close(group.known, sent[group.rows].any(dim=0))
        factor = (group.values[group.known] / true[group.known]).median()
        torch.testing.assert_close(
            group.values, torch.where(group.known, factor * true, 0), rtol=1e-5, atol=1e-9
        )
        for row, factor in zip(group.rows, group.factors, strict=True):
            torch.testing.assert_close(
                weight[row], torch.where(sent[row], factor * group.values, 0), rtol=1e-5, atol=1e-9
            )


def test_a_white_background_does_not_make_two_samples_one():
    generator = torch.Generator().manual_seed(0)
    pictures = torch.rand(2, FEATURES, generator=generator, dtype=torch.float64)
    pictures[:, :100] = 1.0
    sent = torch.ones(2, FEATURES, dtype=torch.bool)
    sent[0, 100:120] = sent[1, 110:] = False
    sent[0, 130:] = False
    weight = torch.where(sent, pictures * torch.tensor([[2.0], [-3.0]]), 0)
    assert sorted(len(group.rows) for group in merge_rows(weight, sent)) == [1, 1]


@given(seed=st.integers(0, 1000), rows=st.integers(1, 4))
@settings(max_examples=10, deadline=None)
def test_what_is_filled_in_is_within_the_bound_and_the_rest_is_left_alone(seed, rows):
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(rows, 192, generator=generator, dtype=torch.float64)
    known = values.abs() > 0.8
    most = torch.where(known, torch.inf, 0.8 + torch.zeros_like(values))
    filled = fill_in(values, known, most, torch.ones(rows).double(), (3, 8, 8))
    torch.testing.assert_close(filled[known], values[known], rtol=0, atol=0)
    assert filled[~known].abs().max() <= 0.8


def test_the_holes_of_smooth_pictures_are_closed():
    across, down = torch.meshgrid(torch.linspace(-1, 1, 12), torch.linspace(-1, 1, 12), indexing="ij")
    pictures = torch.stack([across + 0.5 * down, torch.sin(2 * down) - across]).double()
    pictures = pictures[:, None].expand(-1, 3, -1, -1).flatten(1)
    signals = torch.tensor([0.5, -2.0]).double()
    parts = signals[:, None] * pictures
    rows = torch.stack([parts.sum(dim=0), parts[1]])
    known = torch.rand(rows.shape, generator=torch.Generator().manual_seed(0)) < 0.5
    filled = fill_in(rows, known, torch.full_like(rows, torch.inf), signals, (3, 12, 12))
    found = torch.stack([filled[0] - filled[1], filled[1]]) / signals[:, None]
    assert (found - pictures).square().mean() < 0.02 * pictures.square().mean()


def test_only_a_rule_that_is_known_bounds_what_was_withheld(ctx):
    update = {"w": torch.randn(5, 20, generator=torch.Generator().manual_seed(0))}
    prune = keep_topk(0.3)
    pruned, _ = prune.apply(update, prune.init(update), ctx)
    model = torch.nn.Linear(20, 5)
    bounds = largest_withheld(Observation(model, pruned, defense=prune.traces), "w")
    assert (update["w"].abs() <= bounds).all()
    assert float(bounds.min()) == float(pruned["w"][pruned["w"] != 0].abs().min())
    for defense in (None, prune_dual(0.1, 0.6).traces):
        assert largest_withheld(Observation(model, pruned, defense=defense), "w").isinf().all()
