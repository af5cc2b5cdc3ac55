"""Public samples: drawn by a seed, balanced if asked for, and nobody's own."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fl_app.data import Dataset, Samples, public_samples
from fl_app.data.public_samples import digits, draw_public, held_out


def numbered(count: int, classes: int = 3, shape: tuple[int, int, int] = (1, 2, 2)) -> Dataset:
    """Images that tell their own number."""
    inputs = torch.arange(count, dtype=torch.uint8).view(-1, 1, 1, 1).expand(-1, *shape).clone()
    samples = Samples(inputs, torch.arange(count) % classes)
    names = tuple(f"class {i}" for i in range(classes))
    return Dataset.of("numbered", train=samples, test=samples, class_names=names)


def numbers(samples: Samples) -> list[int]:
    return samples.inputs[:, 0, 0, 0].tolist()


@settings(deadline=None, max_examples=50)
@given(st.lists(st.integers(0, 4), min_size=2, max_size=60), st.integers(0, 10**6), st.data())
def test_draws_are_different_samples_and_the_seed_s_own(labels, seed, data):
    count = data.draw(st.integers(1, len(labels)))
    chosen = draw_public(torch.tensor(labels), count, seed).tolist()
    assert len(set(chosen)) == len(chosen) == count
    assert set(chosen) <= set(range(len(labels)))
    assert chosen == draw_public(torch.tensor(labels), count, seed).tolist()


def test_every_sample_is_as_likely_as_another():
    times = [0] * 12
    for seed in range(1200):
        for index in draw_public(torch.zeros(12, dtype=torch.int64), 3, seed).tolist():
            times[index] += 1
    assert min(times) > 300 - 5 * 15
    assert max(times) < 300 + 5 * 15


@settings(deadline=None, max_examples=50)
@given(st.lists(st.sampled_from([0, 2, 5]), min_size=6, max_size=60), st.integers(0, 1000))
def test_a_balanced_draw_has_as_many_of_each_class_that_occurs(labels, seed):
    tensor, present = torch.tensor(labels), sorted(set(labels))
    each = min(labels.count(label) for label in present)
    chosen = draw_public(tensor, each * len(present), seed, balanced=True)
    drawn = tensor[chosen].tolist()
    assert [drawn.count(label) for label in present] == [each] * len(present)
    assert len(set(chosen.tolist())) == len(chosen)


def test_what_cannot_be_balanced_is_refused():
    labels = torch.tensor([0] * 10 + [1] * 3)
    for count in (5, 8):
        with pytest.raises(ValueError, match=f"multiple of 2 classes, and at most 3 a class; got {count}"):
            draw_public(labels, count, 0, balanced=True)
    for count in (0, 14):
        with pytest.raises(ValueError, match=rf"count must be in 1\.\.13, got {count}"):
            draw_public(labels, count, 0)


@pytest.mark.parametrize("balanced", [False, True])
def test_what_is_held_out_is_no_client_s_and_nothing_else_changes(balanced):
    task = numbered(30)
    public, rest = held_out(6, seed=4, balanced=balanced)(task)
    assert len(public.train) == 6
    assert sorted(numbers(public.train) + numbers(rest.train)) == list(range(30))
    assert [n % 3 for n in numbers(rest.train)] == rest.train.labels.tolist()
    assert rest.test is task.test
    # not that of fewer samples: a run's normalisation does not depend on what is public
    assert (rest.mean, rest.std, public.mean, public.std) == (task.mean, task.std) * 2
    assert numbers(task.train) == list(range(30))


def test_another_seed_holds_out_others():
    task = numbered(30)
    drawn = [tuple(numbers(held_out(6, seed)(task)[0].train)) for seed in range(5)]
    assert len(set(drawn)) == 5


def test_clients_must_be_left_something():
    with pytest.raises(
        ValueError, match="held_out: 30 public samples leave none of numbered for the clients"
    ):
        held_out(30)(numbered(30))


@pytest.fixture
def _few_digits(monkeypatch):
    """Stand-ins for the handwritten digits: which of them are drawn is what is tested here."""
    drawn = replace(numbered(200, classes=10, shape=(1, 28, 28)), name="mnist")
    monkeypatch.setattr(public_samples, "mnist", lambda root, source: drawn)


@pytest.mark.usefixtures("_few_digits")
def test_digits_are_other_pictures_and_leave_the_task_alone():
    task = numbered(30, classes=10, shape=(1, 28, 28))
    public, rest = digits(10, "nowhere", seed=1)(task)
    assert rest is task
    assert (public.name, len(public.train), public.in_shape) == ("mnist", 10, (1, 28, 28))
    same, _ = digits(10, "nowhere", seed=1)(task)
    other, _ = digits(10, "nowhere", seed=2)(task)
    assert numbers(public.train) == numbers(same.train) != numbers(other.train)


@pytest.mark.usefixtures("_few_digits")
@pytest.mark.parametrize(("classes", "shape"), [(10, (3, 32, 32)), (3, (1, 28, 28))])
def test_digits_that_do_not_fit_the_task_are_refused(classes, shape):
    with pytest.raises(ValueError, match=r"digits: pictures .* of 10 classes do not fit numbered"):
        digits(10, "nowhere")(numbered(30, classes=classes, shape=shape))
