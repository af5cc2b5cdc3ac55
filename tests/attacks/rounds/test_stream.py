"""Rounds on other samples each, rounds that forget, and the sum of rounds."""

import copy
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from attacks.metrics import mse
from attacks.optimisation import dlg, inverting_gradients
from attacks.optimisation.client_gradient import client_gradient
from attacks.optimisation.evidence import Evidence
from attacks.optimisation.objectives import cosine_distance, round_by_round, squared_distance
from attacks.optimisation.problem import as_problem, flatten_update
from attacks.rounds.course import Rounds, carried
from attacks.rounds.joint import unusable_rounds, unusable_stream, with_earlier_rounds
from attacks.rounds.summed import summed, unusable_sum
from fl_app.transforms import keep_topk
from fl_app.types import RoundContext, Trace

ROUNDS = 3


def pictures(count: int) -> torch.Tensor:
    coarse = torch.rand(count, 3, 3, 3, generator=torch.Generator().manual_seed(3)).double()
    return F.interpolate(coarse, size=8, mode="bilinear", align_corners=True)


def run(observe, model, batches, labels, *, memory: float = 1.0, same: bool = False, kept: float = 0.2):
    """Let a client train on one batch a round; return what is seen last, and what was pruned by round."""
    pruning, model, seen, got = keep_topk(kept), copy.deepcopy(model), [], []
    residual = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    traces = (replace(pruning.traces[0], feedback=True, memory=memory),)
    for number, pixels in enumerate(batches, 1):
        raw = observe(copy.deepcopy(model), pixels, labels)
        update = {name: g + memory * residual[name] for name, g in raw.update.items()}
        sent, _ = pruning.apply(update, pruning.init(update), RoundContext(number, 0, torch.Generator()))
        residual = {name: update[name] - sent[name] for name in update}
        got.append(update)
        masks = {name: entries != 0 for name, entries in sent.items()}
        seen.append(replace(raw, update=sent, sent=masks, round=number, defense=traces, same_batch=same))
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter -= 0.2 * sent[name]
    return replace(seen[-1], history=tuple(seen[:-1])), got


def predicted(problem, pixels, labels):
    gradient, _ = client_gradient(
        problem.model, problem.names, pixels[None], labels[None], course=problem.rounds
    )
    return gradient(pixels[None], labels[None], {})[0]


@pytest.mark.parametrize("memory", [1.0, 0.6])
def test_the_true_stream_explains_every_round(observe, small_lenet, memory):
    batches, labels = pictures(2 * ROUNDS).split(2), torch.tensor([2, 0])
    obs, got = run(observe, small_lenet, batches, labels, memory=memory)
    assert unusable_stream(obs) is None
    assert unusable_rounds(obs) is not None
    problem = with_earlier_rounds(as_problem(obs, who="test"), obs, stream=True)
    assert problem.batch_size == 2 * ROUNDS
    guess = predicted(problem, torch.cat(batches), labels.repeat(ROUNDS))
    expected = torch.cat([flatten_update(update, problem.names) for update in got])
    torch.testing.assert_close(guess - problem.rounds.before, expected)
    distance = Evidence.of([problem]).distance(squared_distance, masked=True, withheld=1.0)
    assert distance(guess[None]) < 1e-20
    swapped = predicted(problem, torch.cat(batches[::-1]), labels.repeat(ROUNDS))
    assert distance(swapped[None]) > 1e-6


@pytest.mark.parametrize("memory", [1.0, 0.6])
def test_rounds_of_the_same_samples_that_forget_are_explained(observe, small_lenet, memory):
    pixels, labels = pictures(1), torch.tensor([2])
    obs, got = run(observe, small_lenet, [pixels] * ROUNDS, labels, memory=memory, same=True)
    problem = with_earlier_rounds(as_problem(obs, who="test"), obs)
    expected = torch.cat([flatten_update(update, problem.names) for update in got])
    torch.testing.assert_close(predicted(problem, pixels, labels) - problem.rounds.before, expected)


@pytest.mark.parametrize("memory", [0.0, 0.3, 1.0])
def test_what_is_carried_is_the_sum_written_out(memory):
    rows = torch.randn(4, 5, generator=torch.Generator().manual_seed(0)).double()
    expected = [sum(memory ** (t - i) * rows[i] for i in range(t + 1)) for t in range(4)]
    torch.testing.assert_close(carried(rows, memory), torch.stack(expected))


def test_a_stream_needs_feedback_and_other_samples(observe, small_lenet):
    obs, _ = run(observe, small_lenet, pictures(ROUNDS).split(1), torch.tensor([1]))
    assert "error feedback" in unusable_stream(replace(obs, defense=(Trace(withheld="small"),)))
    assert "same samples" in unusable_stream(replace(obs, same_batch=True))
    assert "since the first" in unusable_stream(replace(obs, history=obs.history[1:]))
    assert "none was seen" in unusable_stream(replace(obs, history=()))


def test_later_rounds_complete_what_the_first_withheld(observe, small_lenet):
    torch.manual_seed(0)
    for parameter in small_lenet.parameters():
        nn.init.uniform_(parameter, -0.2, 0.2)
    batches, labels = pictures(3).split(1), torch.tensor([1])
    obs, _ = run(observe, small_lenet, batches, labels, kept=0.5)
    attack = inverting_gradients(steps=800, tv=0.001, adaptive=True, together="stream", trace=1)
    result, alone = attack(obs), attack(obs.history[0])
    assert [one.shape for one in (*result.earlier, result.images)] == [b.shape for b in batches]
    assert {shot.images.shape for shot in result.trace} == {batches[0].shape}
    assert mse(result.earlier[0], batches[0]) < 0.5 * mse(alone.images, batches[0])
    assert any("other samples in each" in note for note in result.notes)


def test_labels_of_a_stream_are_read_round_by_round(observe, small_lenet):
    batches = pictures(2).split(1)
    seen = [observe(small_lenet, b, torch.tensor([n]), granted=False) for n, b in enumerate(batches)]
    traces = (Trace(feedback=True),)
    first, last = (replace(one, defense=traces, round=n) for n, one in enumerate(seen, 1))
    obs = replace(last, history=(first,))
    attack = inverting_gradients(steps=2, adaptive=True, together="stream")
    labels, _ = attack.known(*attack.see(obs))
    assert labels.tolist() == [0, 1]
    assert attack(obs).labels.tolist() == [1]
    assert dlg(steps=1, adaptive=True, together="stream")(obs).images.shape == batches[0].shape


def test_each_round_counts_alike_however_large_it_is():
    target = torch.randn(1, 8, generator=torch.Generator().manual_seed(0))
    guess = torch.randn(1, 8, generator=torch.Generator().manual_seed(1))
    large = torch.cat([torch.ones(1, 4), torch.full((1, 4), 1e3)], dim=1)
    mean = round_by_round(cosine_distance, 2)
    parts = [cosine_distance(t)(g) for t, g in zip(target.chunk(2, 1), guess.chunk(2, 1), strict=True)]
    torch.testing.assert_close(mean(target * large, None)(guess), sum(parts) / 2)


def test_the_sum_of_rounds_is_their_mean_update_at_the_middle_model(observe, small_lenet):
    obs, _ = run(observe, small_lenet, [pictures(1)] * ROUNDS, torch.tensor([2]), same=True)
    noisy = replace(obs, defense=(Trace(noise=0.3, withheld="small", feedback=True, signs=True),))
    assert unusable_sum(noisy) is None
    mean = summed(noisy)
    for name, entries in mean.update.items():
        every = [one.update[name] for one in (*obs.history, obs)]
        torch.testing.assert_close(entries, torch.stack(every).mean(dim=0))
        assert torch.equal(mean.sent[name], sum(u != 0 for u in every) > 0)
    assert mean.model is obs.history[1].model
    (trace,) = mean.defense
    assert (trace.withheld, trace.feedback, trace.signs) == ("", False, False)
    assert trace.noise == pytest.approx(0.3 / ROUNDS**0.5)


def test_noise_of_many_rounds_averages_out(observe, small_lenet):
    torch.manual_seed(0)
    for parameter in small_lenet.parameters():
        nn.init.uniform_(parameter, -0.2, 0.2)
    pixels, generator, seen = pictures(1), torch.Generator().manual_seed(5), []
    raw = observe(small_lenet, pixels, torch.tensor([2]))
    size = float(flatten_update(raw.update, tuple(raw.update)).square().mean().sqrt())
    for number in range(1, 17):
        noise = {
            n: size * torch.randn(g.shape, generator=generator, dtype=g.dtype) for n, g in raw.update.items()
        }
        update = {name: g + noise[name] for name, g in raw.update.items()}
        seen.append(
            replace(
                raw, update=update, sent=None, round=number, same_batch=True, defense=(Trace(noise=size),)
            )
        )
    obs = replace(seen[-1], history=tuple(seen[:-1]))
    attack = inverting_gradients(steps=150, tv=0.01, adaptive=True, together="sum")
    alone = replace(attack, together="single")
    assert mse(attack(obs).images, pixels) < 0.7 * mse(alone(obs).images, pixels)
    assert any("sum of all 16 rounds" in note for note in attack(obs).notes)
    assert any("left out: as asked" in note for note in alone(obs).notes)


def test_streams_are_not_mixed_with_rounds_on_the_same_samples():
    rounds = Rounds((), 1.0, torch.zeros(0))
    assert rounds.is_like(Rounds((), 1.0, torch.zeros(0)))
    assert not rounds.is_like(Rounds((), 1.0, torch.zeros(0), stream=True))
    assert not rounds.is_like(Rounds((), 0.5, torch.zeros(0)))


def test_an_unknown_use_of_rounds_is_refused():
    with pytest.raises(ValueError, match="together"):
        inverting_gradients(together="all")
