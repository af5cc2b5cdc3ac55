"""Both scores against plain loops, and a search that finds what is there to be found."""

import itertools
import json
import math

import numpy as np
import pytest
import torch
from federations import SMALL
from torch import nn
from torch.nn import functional as F

from fl_app.cli import ats_search as ats_command
from fl_app.config.build import server_parts
from fl_app.data import Samples
from fl_app.defenses import LIBRARY, ats, ats_scores, judge_with, search_policies
from fl_app.defenses.ats_scores import accuracy_score, privacy_score
from fl_app.defenses.ats_search import Judge, draw_policies
from fl_app.models import lenet_zhu
from fl_app.seeding import generator_for
from fl_app.training import LocalData

INVERT = 47


def draws(number: int = 0) -> torch.Generator:
    return generator_for(0, 0, number, "test")


def images(count: int, shape: tuple[int, ...] = (3, 8, 8)) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(count, *shape, dtype=torch.float64), torch.arange(count) % 4


def slow_privacy_score(model: nn.Module, inputs: torch.Tensor, labels: torch.Tensor, noise: torch.Tensor):
    def gradient(x: torch.Tensor, label: torch.Tensor) -> tuple[torch.Tensor, ...]:
        loss = F.cross_entropy(model(x.unsqueeze(0)), label.unsqueeze(0))
        return torch.autograd.grad(loss, list(model.parameters()))

    areas = []
    for x, label, start in zip(inputs, labels, noise, strict=True):
        target, heights = gradient(x, label), []
        for i in range(21):
            blend = (1 - i / 20) * start + i / 20 * x
            pairs = zip(gradient(blend, label), target, strict=True)
            cosines = [float((a * b).sum() / (a.norm() * b.norm())) for a, b in pairs]
            heights.append(sum(cosines) / len(cosines))
        areas.append(sum((a + b) / 2 / 20 for a, b in itertools.pairwise(heights)))
    return sum(areas) / len(areas)


def normed(num_classes: int, in_shape: tuple[int, ...]) -> nn.Module:
    """A small network whose images would see each other in train mode."""
    layers = [nn.Conv2d(in_shape[0], 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(4 * (in_shape[1] - 2) * (in_shape[2] - 2), num_classes))


@pytest.mark.parametrize("make", [lenet_zhu, normed])
@pytest.mark.parametrize("shape", [(3, 8, 8), (1, 7, 9)])
def test_the_privacy_score_is_that_of_a_plain_loop(make, shape):
    model = make(num_classes=4, in_shape=shape).double().eval()
    inputs, labels = images(3, shape)
    noise = torch.randn_like(inputs)
    expected = slow_privacy_score(model, inputs, labels, noise)
    assert privacy_score(model, inputs, labels, noise) == pytest.approx(expected, abs=1e-9)


def test_the_privacy_score_does_not_depend_on_how_much_fits_in_memory(monkeypatch):
    model = lenet_zhu(num_classes=4, in_shape=(3, 8, 8)).double().eval()
    inputs, labels = images(5)
    noise = torch.randn_like(inputs)
    at_once = privacy_score(model, inputs, labels, noise)
    monkeypatch.setattr(ats_scores, "_GRADIENT_ENTRIES", 1)
    assert privacy_score(model, inputs, labels, noise) == pytest.approx(at_once, abs=1e-12)


def test_an_image_that_is_the_noise_itself_is_given_away_from_the_start():
    model = lenet_zhu(num_classes=4, in_shape=(3, 8, 8)).double().eval()
    inputs, labels = images(2)
    assert privacy_score(model, inputs, labels, inputs) == pytest.approx(1)
    assert privacy_score(model, inputs, labels, torch.randn_like(inputs)) < 0.99


def test_the_accuracy_score_is_that_of_a_plain_loop_with_numpy():
    model = lenet_zhu(num_classes=4, in_shape=(3, 8, 8)).double().eval()
    inputs, _ = images(6)
    rows = []
    for x in inputs:
        x = x.unsqueeze(0).requires_grad_()
        rows.append(torch.autograd.grad(model(x).sum(), x)[0].flatten().numpy())
    v = np.linalg.eigvals(np.corrcoef(np.stack(rows))).real
    expected = -np.sum(np.log(v + 1e-5) + 1 / (v + 1e-5))
    assert accuracy_score(model, inputs) == pytest.approx(expected, rel=1e-6)


class Scale(nn.Module):
    """An output whose Jacobian is the input itself."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x.flatten(1) ** 2 / 2).sum(dim=1, keepdim=True)


def test_the_accuracy_score_of_cases_that_were_worked_out_by_hand():
    apart = torch.tensor([[1.0, -1, 1, -1], [1, 1, -1, -1]]).view(2, 1, 2, 2)
    assert accuracy_score(Scale(), apart) == pytest.approx(-2, abs=1e-6)
    same = apart[[0, 0]]
    # eigenvalues 0 and 2
    expected = -(math.log(1e-5) + 1e5 + math.log(2) + 0.5)
    assert accuracy_score(Scale(), same) == pytest.approx(expected, rel=1e-6)


def test_images_to_which_the_model_does_not_react_score_worst():
    assert accuracy_score(Scale(), torch.zeros(3, 1, 2, 2)) == -math.inf


def test_drawn_policies_are_different_in_range_and_repeatable():
    policies = draw_policies(300, draws())
    assert len(set(policies)) == 300
    assert all(len(policy) == 3 for policy in policies)
    assert {number for policy in policies for number in policy} == set(range(len(LIBRARY)))
    assert draw_policies(300, draws()) == policies
    assert draw_policies(300, draws(1)) != policies
    with pytest.raises(ValueError, match="there are 125000 policies, got a count of 125001"):
        draw_policies(125001, draws())


def judge_of(better: tuple[int, ...]) -> Judge:
    """Invert ruins training and hides everything; ``better`` hides more than any other policy."""
    return Judge(
        accuracy=lambda policy: -math.inf if INVERT in policy else -10.0 - (0.1 if policy else 0),
        privacy=lambda policy: 0.1 if policy == better else 0.5 + sum(policy) / 1000,
    )


def test_the_search_picks_the_most_private_of_those_that_train():
    drawn = draw_policies(200, draws())
    better = next(policy for policy in drawn[100:] if INVERT not in policy)
    found = search_policies(judge_of(better), candidates=200, keep=3, margin=0.02, generator=draws())
    allowed = [policy for policy in drawn if INVERT not in policy]
    assert 0 < len(allowed) < 200
    assert [one.policy for one in found.accepted] == sorted(allowed, key=judge_of(better).privacy)
    assert found.picked == found.accepted[:3]
    assert (found.picked[0].policy, found.picked[0].privacy) == (better, 0.1)
    assert (found.untransformed.policy, found.least_accuracy) == ((), pytest.approx(-10.2))


def test_a_search_that_finds_too_little_says_what_to_change():
    with pytest.raises(
        ValueError, match=r"0 of 20 policies reach an S_acc of -10\.0, 2 are wanted; draw more"
    ):
        search_policies(judge_of(()), candidates=20, keep=2, margin=0.0, generator=draws())


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ({"candidates": 0}, "candidates must be at least 1, got 0"),
        ({"keep": 0}, "keep must be at least 1, got 0"),
        ({"margin": -0.1}, "margin must be a finite number of at least 0, got -0.1"),
        ({"margin": math.nan}, "margin must be"),
    ],
)
def test_settings_that_cannot_be_are_refused(setting, words):
    settings = {"candidates": 5, "keep": 1, "margin": 0.1, "generator": draws()} | setting
    with pytest.raises(ValueError, match=f"search_policies: {words}"):
        search_policies(judge_of(()), **settings)


def test_the_judge_applies_the_policy_before_it_scores():
    samples = Samples(torch.randint(256, (6, 3, 8, 8), dtype=torch.uint8), torch.arange(6) % 4)
    data = LocalData(samples, (0.5, 0.5, 0.5), (0.25, 0.25, 0.25), seed=0, client=0)
    model = lenet_zhu(num_classes=4, in_shape=(3, 8, 8))
    other = lenet_zhu(num_classes=4, in_shape=(3, 8, 8))
    judge = judge_with(data, trained=model, untrained=other, images=2, jacobians=5, generator=draws())
    pixels = 1 - samples.inputs / 255
    noise = torch.rand(2, 3, 8, 8, generator=draws())
    expected = privacy_score(model, (pixels[:2] - 0.5) / 0.25, samples.labels[:2], (noise - 0.5) / 0.25)
    assert judge.privacy((INVERT,)) == pytest.approx(expected, abs=1e-5)
    assert judge.accuracy((INVERT,)) == pytest.approx(
        accuracy_score(other, (pixels[:5] - 0.5) / 0.25), rel=1e-4
    )
    assert judge.privacy(()) != judge.privacy((INVERT,))
    with pytest.raises(ValueError, match=r"judge_with: jacobians must be in 2\.\.6, got 7"):
        judge_with(data, trained=model, untrained=other, images=2, jacobians=7, generator=draws())


QUICK = ["--candidates=12", "--images=2", "--jacobians=10", "--train-steps=2", "--margin=5"]


def command(monkeypatch, *words: str) -> None:
    monkeypatch.setattr("sys.argv", ["fl-app-ats-search", *words])
    ats_command.main()


def test_the_command_prints_an_override_that_builds_and_writes_the_scores(monkeypatch, capsys, tmp_path):
    out = tmp_path / "new" / "scores.json"
    command(monkeypatch, *QUICK, *SMALL.replace("attack=none", "").split(), "--out", str(out))
    printed = capsys.readouterr().out
    content = json.loads(out.read_text())
    assert len(content["picked"]) == 2
    ats(content["picked"])
    compact = json.dumps(content["picked"], separators=(",", ":"))
    assert f"use: defense=ats 'defense.policies={compact}'" in printed
    server_parts(f"{SMALL} defense=ats 'defense.policies={compact}'")
    assert str(LIBRARY[content["picked"][0][0]]).split()[0] in printed
    privacy = [row["privacy"] for row in content["accepted"]]
    assert privacy == sorted(privacy)
    assert all(row["accuracy"] >= content["least_accuracy"] for row in content["accepted"])
    assert content["settings"]["candidates"] == 12

    command(monkeypatch, *QUICK, *SMALL.replace("attack=none", "").split(), "--out", str(out))
    assert json.loads(out.read_text()) == content


def test_the_command_trains_the_model_that_it_asks_for_privacy_and_no_other():
    parts = server_parts(f"{SMALL} defense=none")
    before = {name: tensor.clone() for name, tensor in parts.model.state_dict().items()}
    settings = {"candidates": 4, "keep": 1, "margin": 5.0, "images": 2, "jacobians": 8}
    untrained, trained = (ats_command.search(parts, **settings, train_steps=steps) for steps in (0, 5))
    assert untrained.untransformed.privacy != trained.untransformed.privacy
    assert untrained.untransformed.accuracy == trained.untransformed.accuracy
    assert all(torch.equal(tensor, before[name]) for name, tensor in parts.model.state_dict().items())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["defense=dgp"], "defense: leave it out"),
        (["attack.steps=3"], "attack: leave it out"),
        (["model=lenett"], "did you mean lenet?"),
        (["--images=80", "data.train_per_class=8"], "--images, --jacobians: must be below 80"),
        (["--train-steps=-1"], "--train-steps must be at least 0, got -1"),
        (["--candidates=0"], "candidates must be at least 1, got 0"),
    ],
)
def test_what_the_user_can_mend_is_one_line_of_the_command(monkeypatch, capsys, words, message):
    small = ["--images=2", "--jacobians=5", "--train-steps=0"]
    with pytest.raises(SystemExit) as stop:
        command(monkeypatch, *small, "data.test_per_class=1", "data.train_per_class=4", *words)
    assert stop.value.code == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("fl-app-ats-search: ")
    assert message in printed.err
    assert len(printed.err.splitlines()) == 1
