"""A recorded training is the same training, and its tape gives the same weights."""

import copy

import pytest
import torch
from torch import nn

from fl_app.audit.recorder import recording, watched_torch
from fl_app.audit.tape import Player


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 3, 3)
        self.norm = nn.BatchNorm2d(3)
        self.drop = nn.Dropout(0.3)
        self.out = nn.Linear(3 * 16, 4)

    def forward(self, x):
        return self.out(self.drop(torch.relu(self.norm(self.conv(x)))).flatten(1))


def sgd(net):
    return torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)


def plain(net, images, labels, optimiser):
    optimiser.zero_grad()
    nn.functional.cross_entropy(net(images), labels).backward()
    optimiser.step()


def accumulated(net, images, labels, optimiser):
    optimiser.zero_grad()
    for part in (slice(0, 2), slice(2, 4)):
        (nn.CrossEntropyLoss(label_smoothing=0.1)(net(images[part]), labels[part]) / 2).backward()
    nn.utils.clip_grad_norm_(net.parameters(), 0.3)
    optimiser.step()


def composite(net, images, labels, optimiser):
    optimiser.zero_grad()
    hidden = torch.relu(net.norm(net.conv(images)))
    noise = torch.randn_like(hidden)
    scores = net.out((hidden + 0.1 * noise).flatten(1))
    loss = nn.functional.nll_loss(torch.log_softmax(scores, 1), labels)
    loss = loss + 0.01 * sum(p.abs().sum() for p in net.parameters())
    loss.backward()
    optimiser.step()


def frozen_norm(net, images, labels, optimiser):
    net.train()
    net.norm.eval()
    plain(net, images, labels, optimiser)


def train(step, make):
    torch.manual_seed(0)
    net = Net()
    optimiser = make(net)
    schedule = torch.optim.lr_scheduler.StepLR(optimiser, 1, gamma=0.5)
    for i in range(3):
        generator = torch.Generator().manual_seed(i)
        images, labels = torch.rand(4, 1, 6, 6, generator=generator), torch.tensor([0, 1, 2, 3])
        step(net, images, labels, optimiser)
        schedule.step()
    return net


STEPS = [plain, accumulated, composite, frozen_norm]
OPTIMISERS = [
    sgd,
    lambda net: torch.optim.AdamW(net.parameters(), lr=0.01),
    lambda net: torch.optim.RMSprop(
        [{"params": net.conv.parameters(), "lr": 0.001}, {"params": net.out.parameters()}], lr=0.01
    ),
]


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("make", OPTIMISERS)
def test_the_tape_gives_the_weights_and_recording_changes_nothing(step, make):
    untouched = train(step, make).state_dict()
    with watched_torch(), recording() as recorder:
        net = train(step, make)
    tape = recorder.finish()
    recorded = copy.deepcopy(net.state_dict())
    torch.testing.assert_close(recorded, untouched, rtol=0, atol=0)
    assert not tape.problems
    player = Player(tape)
    player.play(tape.steps)
    torch.testing.assert_close(player.models[0].state_dict(), recorded, rtol=1e-6, atol=1e-7)


def test_a_closure_is_a_stated_problem():
    with watched_torch(), recording() as recorder:
        net = nn.Linear(3, 2)
        optimiser = torch.optim.LBFGS(net.parameters())
        rows, labels = torch.rand(4, 3), torch.tensor([0, 1, 0, 1])

        def closure():
            optimiser.zero_grad()
            loss = nn.functional.cross_entropy(net(rows), labels)
            loss.backward()
            return loss

        closure()
        optimiser.step(closure)
    assert recorder.finish().problems


def test_one_row_of_a_batch_has_its_own_gradient():
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))
    rows, labels = torch.rand(6, 5), torch.tensor([0, 1, 2, 0, 1, 2])
    expected = torch.autograd.grad(
        nn.functional.cross_entropy(net(rows[2:3]), labels[2:3]), list(net.parameters())
    )
    with watched_torch(), recording() as recorder:
        optimiser = torch.optim.SGD(net.parameters(), lr=0.1)
        nn.functional.cross_entropy(net(rows), labels).backward()
        optimiser.step()
    tape = recorder.finish()
    player = Player(tape, row=2)
    player.compute(tape.steps[0])
    torch.testing.assert_close(list(player.gradients().values()), list(expected))
