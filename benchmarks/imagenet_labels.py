"""Labels of whole batches, read off a network that was trained on ImageNet.

``python -m benchmarks.imagenet_labels [FOLDER] [--batches 10] [--samples 10 50] [--defenses none …]
[--networks trained] [--modes eval]``:
EfficientNet-Lite0 with the weights of the extra ``trained``, and the same network untrained. Images are
crops of the embedded photographs and, with an image folder of CIFAR-10, its test images, all at 224x224
pixels. Labels are those that the trained network predicts, as a client of a good model has them, or random
ones. RLG answers by hyperplanes alone; where it does not infer the number of samples, it is told.
"""

from __future__ import annotations

import argparse
import copy
import itertools
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attacks.base import LabelAttack
from attacks.labels import bias_labels, rlg, yin_labels
from benchmarks.labels import INFERRED, header, line, measure, observe, output_gradients
from fl_app.data import imagefolder, photos
from fl_app.models import efficientnet_lite0
from fl_app.models.efficientnet_lite_weights import CLASSES, MEAN, SIZE, STD, trained_weights

LAYER = "output"
CROPS = 6
"""Images of each photograph, and of each class of CIFAR-10."""
NETWORKS, MODES = ("untrained", "trained"), ("train", "eval")
DEFENSES = ("none", "sign", "graddrop50", "graddrop90")
LONGEST = 200


def networks() -> dict[str, nn.Sequential]:
    """Return the network untrained and trained."""
    torch.manual_seed(0)
    fresh = efficientnet_lite0(CLASSES, (3, SIZE, SIZE))
    trained = copy.deepcopy(fresh)
    trained.load_state_dict(trained_weights())
    return {"untrained": fresh, "trained": trained}


def images(folder: Path | None) -> Tensor:
    """Return all images, as the network takes them."""
    sources = [photos(size=SIZE, train_per_class=CROPS, test_per_class=1).train.inputs]
    if folder is not None:
        sources.append(imagefolder(folder, limit_per_class=CROPS).test.inputs)
    scaled = [F.interpolate(pixels / 255, (SIZE, SIZE), mode="bilinear") for pixels in sources]
    return (torch.cat(scaled) - MEAN) / STD


@torch.no_grad()
def features(network: nn.Sequential, inputs: Tensor) -> Tensor:
    """Return what the output layer gets: of one batch in train mode, of all images in eval mode."""
    if not network.training:
        return torch.cat([network[:-1](batch) for batch in inputs.split(10)])
    body = copy.deepcopy(network[:-1])  # a step in train mode changes the statistics of BatchNorm
    kept: Tensor = body(inputs)
    return kept


def batches(
    network: nn.Sequential, inputs: Tensor, samples: int, number: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield which images are in a batch, and their features."""
    known = None if network.training else features(network, inputs)
    for seed in range(number):
        torch.manual_seed(seed)  # of the draw and of dropout
        chosen = torch.randperm(len(inputs))[:samples]
        yield chosen, features(network, inputs[chosen]) if known is None else known[chosen]


def attacks(samples: int) -> dict[str, LabelAttack]:
    """Return the attacks on batches of so many samples."""
    return {
        INFERRED: rlg(fallback=False),
        "RLG": rlg(rank=samples, fallback=False, scale_rows=False),
        "RLG as published": rlg(rank=samples, fallback=False, scale_rows=False, longest=LONGEST),
        "Yin": yin_labels(),
        "bias": bias_labels(),
    }


def main(
    folder: Path | None,
    samples: Sequence[int],
    number: int,
    defenses: Sequence[str],
    wanted: Sequence[str] = NETWORKS,
    modes: Sequence[str] = MODES,
) -> None:
    """Print the table of the wanted networks and modes."""
    torch.set_num_threads(1)
    nets, inputs = networks(), images(folder)
    trained = nets["trained"].eval()
    with torch.no_grad():
        predicted = trained[-1](features(trained, inputs)).argmax(dim=1)
    print(f"{len(inputs)} images, {len(predicted.unique())} predicted classes", flush=True)
    drawn = torch.randint(CLASSES, (len(inputs),), generator=torch.Generator().manual_seed(0))
    print(header(["network", "mode", "labels", "N", "defense"]), flush=True)
    for name, network in ((name, nets[name]) for name in wanted):
        head = nn.Sequential(OrderedDict({LAYER: network[-1]}))
        for mode, count in itertools.product(modes, samples):
            seen = list(batches(network.train(mode == "train"), inputs, count, number))
            for (words, labels), defense in itertools.product(
                (("predicted", predicted), ("random", drawn)), defenses
            ):
                updates = [(output_gradients(head, LAYER, h, labels[i]), labels[i]) for i, h in seen]
                for attack, method in attacks(count).items():
                    if attack == INFERRED and defense != "none":
                        continue
                    told = None if attack == INFERRED else count
                    observed = [(observe(network, update, defense, told), own) for update, own in updates]
                    case = [name, mode, words, str(count), defense]
                    print(line(case, attack, measure(method, observed)), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="benchmarks.imagenet_labels", description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--samples", nargs="+", type=int, default=[10, 50])
    parser.add_argument("--batches", type=int, default=10)
    parser.add_argument("--defenses", nargs="+", choices=DEFENSES, default=["none"])
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=NETWORKS)
    parser.add_argument("--modes", nargs="+", choices=MODES, default=MODES)
    asked = parser.parse_args()
    main(asked.folder, asked.samples, asked.batches, asked.defenses, asked.networks, asked.modes)
