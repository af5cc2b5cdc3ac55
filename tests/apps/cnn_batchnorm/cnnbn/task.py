"""A small CNN with BatchNorm, and synthetic pictures."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 4, 3, padding=1)
        self.bn = nn.BatchNorm2d(4)
        self.fc = nn.Linear(4 * 6 * 6, 4)

    def forward(self, x):
        x = torch.max_pool2d(torch.relu(self.bn(self.conv1(x))), 2)
        return self.fc(x.flatten(1))


def load_data(partition, batch_size):
    generator = torch.Generator().manual_seed(partition)
    labels = torch.randint(0, 4, (24,), generator=generator)
    places = torch.linspace(-1, 1, 12)
    centres = 0.6 * torch.rand(24, 2, generator=generator) - 0.3
    distance = (places[None, :, None] - centres[:, 0, None, None]) ** 2
    distance = distance + (places[None, None, :] - centres[:, 1, None, None]) ** 2
    images = torch.exp(-distance * (2.0 + labels[:, None, None]))[:, None]
    return DataLoader(TensorDataset(images, labels), batch_size=batch_size, shuffle=True)


def train(net, loader, lr):
    optimiser = torch.optim.SGD(net.parameters(), lr=lr, momentum=0.9)
    criterion = nn.CrossEntropyLoss()
    net.train()
    total = 0.0
    for images, labels in loader:
        optimiser.zero_grad()
        loss = criterion(net(images), labels)
        loss.backward()
        optimiser.step()
        total += loss.item()
    return total / len(loader)


@torch.no_grad()
def evaluate(net, loader):
    net.eval()
    right = sum((net(images).argmax(1) == labels).sum().item() for images, labels in loader)
    return right / len(loader.dataset)
