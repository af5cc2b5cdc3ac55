"""Rounds of a client on the same samples: what its transform got is what the server can compute from them."""

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
from attacks.optimisation.matching import graph_size, match_gradients
from attacks.optimisation.objectives import squared_distance
from attacks.optimisation.problem import Problem, as_problem, flatten_update
from attacks.rounds.joint import unusable_rounds, with_earlier_rounds
from fl_app.models.bottleneck import add_bottleneck
from fl_app.transforms import Transform, error_feedback, keep_topk, prune_dual
from fl_app.types import Observation, RoundContext, Update

LABELS = torch.tensor([2, 0])
PRUNING = {
    "topk": keep_topk(0.2),
    "dual": prune_dual(0.05, 0.5),
}


def pictures(count: int) -> torch.Tensor:
    coarse = torch.rand(count, 3, 3, 3, generator=torch.Generator().manual_seed(3)).double()
    return F.interpolate(coarse, size=8, mode="bilinear", align_corners=True)


def recording(inner: Transform, got: list[Update]) -> Transform:
    """The same transform, which writes down what it gets."""

    def apply(update, state, ctx):
        got.append({name: tensor.clone() for name, tensor in update.items()})
        return inner.apply(update, state, ctx)

    return inner._replace(apply=apply)


def run(
    observe, model, pixels, labels, pruning: str, feedback: bool, rounds: int = 3
) -> tuple[Observation, list[Update]]:
    """Let a client train on the same batch in every round; return what is seen last, and what was pruned."""
    got: list[Update] = []
    transform = error_feedback(recording(PRUNING[pruning], got), enabled=feedback)
    model, state, seen = copy.deepcopy(model), None, []
    for number in range(1, rounds + 1):
        raw = observe(copy.deepcopy(model), pixels, labels)
        state = transform.init(raw.update) if state is None else state
        ctx = RoundContext(round=number, client=0, generator=torch.Generator())
        update, state = transform.apply(raw.update, state, ctx)
        sent = {name: entries != 0 for name, entries in update.items()}
        seen.append(
            replace(raw, update=update, sent=sent, round=number, defense=transform.traces, same_batch=True)
        )
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter -= 0.2 * update[name]
    return replace(seen[-1], history=tuple(seen[:-1])), got


def predicted(problem: Problem, inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    gradient, reason = client_gradient(
        problem.model, problem.names, inputs[None], labels[None], course=problem.rounds
    )
    assert reason is None
    return gradient(inputs[None], labels[None], {})[0]


@pytest.mark.parametrize("feedback", [True, False])
@pytest.mark.parametrize("pruning", PRUNING)
def test_the_true_samples_give_what_was_pruned_in_every_round(observe, small_lenet, pruning, feedback):
    pixels = pictures(2)
    obs, got = run(observe, small_lenet, pixels, LABELS, pruning, feedback)
    assert unusable_rounds(obs) is None
    problem = with_earlier_rounds(as_problem(obs, who="test"), obs)
    guess = predicted(problem, pixels, LABELS)
    expected = torch.cat([flatten_update(update, problem.names) for update in got])
    torch.testing.assert_close(guess - problem.rounds.before, expected)
    assert bool(problem.rounds.before.any()) == feedback
    # so that all that was sent is explained, and the rule is obeyed
    distance = Evidence.of([problem]).distance(squared_distance, masked=True, withheld=1.0)
    torch.testing.assert_close(distance(guess[None]), torch.zeros(1).double(), atol=1e-20, rtol=0)
    assert problem.withheld is not None
    assert distance(predicted(problem, pixels.flip(0), LABELS)[None]) > 1e-6


def test_with_error_feedback_the_last_round_alone_is_not_explained(observe, small_lenet):
    pixels = pictures(2)
    obs, _ = run(observe, small_lenet, pixels, LABELS, "topk", feedback=True)
    problem = as_problem(obs, who="test")
    distance = Evidence.of([problem]).distance(squared_distance, masked=True, withheld=0.0)
    assert distance(predicted(problem, pixels, LABELS)[None]) > 1e-3


@pytest.fixture
def normed() -> nn.Module:
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Sigmoid(), nn.Flatten(), nn.Linear(144, 4)
    )
    nn.init.normal_(model[1].weight)
    return model.double()


@pytest.mark.parametrize("training", [True, False])
def test_batch_norm_is_used_in_the_clients_mode(observe, normed, training):
    pixels = pictures(2)
    obs, got = run(observe, normed.train(training), pixels, LABELS, "topk", feedback=True)
    problem = with_earlier_rounds(as_problem(obs, who="test"), obs)
    expected = torch.cat([flatten_update(update, problem.names) for update in got])
    torch.testing.assert_close(predicted(problem, pixels, LABELS) - problem.rounds.before, expected)


def test_statistics_that_the_client_sent_are_those_of_their_round(observe, normed):
    pixels = pictures(2)
    obs, _ = run(observe, normed.eval(), pixels, LABELS, "topk", feedback=False)
    first, second = obs.history
    used = copy.deepcopy(first.model)
    used[1].running_mean += 0.5
    first = replace(first, buffers=dict(used.named_buffers()))
    obs = replace(obs, history=(first, second))
    problem = with_earlier_rounds(as_problem(obs, who="test"), obs)
    models = (used, second.model, obs.model)
    expected = [flatten_update(observe(m, pixels, LABELS).update, problem.names) for m in models]
    torch.testing.assert_close(predicted(problem, pixels, LABELS), torch.cat(expected))


REASONS = {
    "no history": ({"history": ()}, "none was seen"),
    "other samples": ({"same_batch": False}, "same samples"),
    "samples unknown": ({"same_batch": None}, "same samples"),
    "local steps": ({"local_steps": 2, "lr": 0.1}, "local steps"),
    "another batch size": ({"batch_size": 3}, "batch sizes"),
    "a round is missing": ({"round": 5}, "all rounds since the first"),
    "rounds unknown": ({"round": None}, "all rounds since the first"),
    "rewritings are drawn": ({"rewrites": (torch.flip, torch.neg)}, "rewritings anew"),
}


@pytest.mark.parametrize("why", REASONS)
def test_rounds_that_cannot_be_used_are_left_out_with_the_reason(observe, small_lenet, why):
    changes, words = REASONS[why]
    obs, _ = run(observe, small_lenet, pictures(2), LABELS, "topk", feedback=True)
    assert words in unusable_rounds(replace(obs, **changes))


@pytest.mark.parametrize("changes", [{"local_steps": 2, "lr": 0.1}, {"batch_size": 3}], ids=str)
def test_one_unfit_round_among_them_is_enough(observe, small_lenet, changes):
    obs, _ = run(observe, small_lenet, pictures(2), LABELS, "topk", feedback=False)
    first, second = obs.history
    assert unusable_rounds(replace(obs, history=(replace(first, **changes), second))) is not None
    assert unusable_rounds(replace(obs, history=(second,))) is None, "without feedback rounds may be missing"


def test_with_error_feedback_the_first_round_may_not_be_missing(observe, small_lenet):
    obs, _ = run(observe, small_lenet, pictures(2), LABELS, "topk", feedback=True)
    assert "since the first" in unusable_rounds(replace(obs, history=obs.history[1:]))


def test_a_model_that_draws_has_other_draws_in_every_round(observe, small_lenet):
    obs, _ = run(observe, small_lenet, pictures(2), LABELS, "topk", feedback=False)
    drawing = replace(obs, model=add_bottleneck(copy.deepcopy(obs.model), size=3))
    assert "draws anew" in unusable_rounds(drawing)


def test_an_attack_says_why_it_left_them_out(observe, small_lenet):
    obs, _ = run(observe, small_lenet, pictures(1), LABELS[:1], "topk", feedback=True)
    result = inverting_gradients(steps=2, adaptive=True)(replace(obs, same_batch=None))
    assert any("2 earlier rounds of the client left out: the client is not known" in n for n in result.notes)
    plain = inverting_gradients(steps=2)(obs)
    assert not any("earlier rounds" in note for note in plain.notes)


@pytest.mark.parametrize("pruning", PRUNING)
def test_an_attack_that_remembers_gets_nearer(observe, small_lenet, pruning):
    torch.manual_seed(0)
    for parameter in small_lenet.parameters():
        nn.init.uniform_(parameter, -0.2, 0.2)
    pixels = pictures(1)
    obs, _ = run(observe, small_lenet, pixels, LABELS[:1], pruning, feedback=True)
    attack = inverting_gradients(steps=200, tv=0.002, adaptive=True)
    remembering, forgetful = attack(obs), attack(replace(obs, history=()))
    assert mse(remembering.images, pixels) < 0.5 * mse(forgetful.images, pixels)
    assert any("together with the 2 earlier rounds" in note for note in remembering.notes)
    assert not any("together with" in note for note in forgetful.notes)


def test_dlg_takes_them_in_its_own_precision(observe, small_lenet):
    obs, _ = run(observe, small_lenet.float(), pictures(1).float(), LABELS[:1], "dual", feedback=True)
    attack = dlg(steps=2, labels="granted", adaptive=True)
    _, problem = attack.see(obs)
    assert {problem.target.dtype, problem.rounds.before.dtype, problem.withheld.low.dtype} == {torch.float64}
    result = attack(obs)
    assert result.images.isfinite().all()
    assert result.images.dtype == torch.float32


def test_many_clients_with_the_same_rounds_are_attacked_as_if_alone(observe, small_lenet):
    pixels = pictures(2)
    seen = []
    for number in range(2):
        obs, _ = run(observe, small_lenet, pixels[number : number + 1], LABELS[:1], "topk", feedback=True)
        seen.append(obs)
    # they got the same models: those of the first
    models = [one.model for one in (*seen[0].history, seen[0])]
    history = tuple(replace(one, model=m) for one, m in zip(seen[1].history, models, strict=False))
    seen[1] = replace(seen[1], model=models[-1], history=history)
    attack = inverting_gradients(steps=10, adaptive=True)
    for together, obs in zip(attack.many(seen), seen, strict=True):
        torch.testing.assert_close(together.images, attack(obs).images, atol=1e-5, rtol=0)


@pytest.mark.parametrize("other", ["fewer", "none", "another model"])
def test_problems_of_different_rounds_are_not_solved_together(observe, small_lenet, other):
    obs, _ = run(observe, small_lenet, pictures(1), LABELS[:1], "topk", feedback=False)
    attack = inverting_gradients(steps=1, adaptive=True)
    changed = {
        "fewer": replace(obs, history=obs.history[1:]),
        "none": replace(obs, history=()),
        "another model": replace(obs, history=(obs.history[0], replace(obs.history[1], model=obs.model))),
    }[other]
    for pair in ([obs, changed], [changed, obs]):
        problems = [attack.see(one)[1] for one in pair]
        with pytest.raises(ValueError, match="earlier rounds"):
            match_gradients(problems, [LABELS[:1]] * 2, attack.recipe(problems[0], pair), restarts=1, seed=0)


def test_the_graph_of_several_rounds_takes_several_times_the_memory(observe, small_lenet):
    obs, _ = run(observe, small_lenet, pictures(1), LABELS[:1], "topk", feedback=False)
    one = as_problem(obs, who="test")
    assert graph_size(with_earlier_rounds(one, obs)) == 3 * graph_size(one)


def test_a_history_that_names_only_some_masks_is_read_all_the_same(observe, small_lenet):
    obs, _ = run(observe, small_lenet, pictures(1), LABELS[:1], "topk", feedback=True)
    partly = replace(obs.history[0], sent={"0.weight": obs.history[0].sent["0.weight"]})
    missing = replace(obs, history=(partly, obs.history[1]))
    problems = [with_earlier_rounds(as_problem(one, who="test"), one) for one in (obs, missing)]
    assert torch.equal(problems[0].sent, problems[1].sent)
