"""Table 1 of the DLG paper: sentences leaking from the gradient of a masked language model, by iteration.

``python -m benchmarks.text [--seeds N] [--layers N …] [--settings NAME …]``. Three sentences of about the
paper's lengths (20 to 25 tokens with [CLS] and [SEP]; of the others 15 % are masked), each on BERT models
with random weights. A setting says what the attacker is granted, or that the search is the paper's own;
only tokens that were not granted count. An iteration is up to 20 steps of L-BFGS.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping, Sequence
from statistics import mean
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attacks.base import Transcript
from attacks.score import score
from attacks.text import embedding_rows, text_dlg
from fl_app.data import UNASKED
from fl_app.models import bert_mlm
from fl_app.text import english
from fl_app.text.tokenizer import MASK
from fl_app.types import Observation, Truth

SENTENCES = (
    "the garden gate was open, and three children waited for the train without a word.",
    "we think that the old house by the river may be sold before the winter.",
    "she said that the letters of her brother had come at last to him.",
)
LENGTH = 32
"""The most tokens that the model takes."""
SHARE = 0.15
ITERATIONS = (0, 2, 5, 10, 20, 30)
"""The paper's, and two earlier ones."""
SETTINGS: Mapping[str, dict] = {
    "masks and targets granted": {"targets": "granted"},
    "nothing granted": {"targets": "infer"},
    "nothing granted, words out of the embedding rows": {"targets": "infer", "use_embedding_rows": True},
    "nothing granted, no clue used": {"targets": "optimise"},
    "granted, the paper's plain distance": {"targets": "granted", "even": False},
}
QUICK = ("masks and targets granted", "nothing granted")


class Leak(NamedTuple):
    """One sentence, attacked once."""

    result: Transcript
    accuracy: list[float]
    """Accuracy of the tokens that were not granted, after each of `ITERATIONS` and at the end."""
    wer: float
    """Word error rate of the whole sentence, at the end."""
    seconds: float
    """Processor time."""


def masked(text: str, seed: int) -> Truth:
    """Return a sentence as a client sees it (1, L), and what the model is asked for, `UNASKED` elsewhere."""
    ids = torch.tensor([english().encode_sentence(text)])
    generator = torch.Generator().manual_seed(seed)
    inner = ids.shape[1] - 2
    chosen = 1 + torch.randperm(inner, generator=generator)[: round(SHARE * inner)]
    labels = torch.full_like(ids, UNASKED)
    labels[0, chosen] = ids[0, chosen]
    return Truth(ids.index_fill(1, chosen, english().sign(MASK)), labels)


def observe(model: nn.Module, truth: Truth, *, grant: bool) -> Observation:
    """Return what the server sees of one step on a sentence."""
    loss = F.cross_entropy(model(truth.inputs)[0], truth.labels[0], ignore_index=UNASKED)
    names, parameters = zip(*model.named_parameters(), strict=True)
    update = dict(zip(names, torch.autograd.grad(loss, parameters), strict=True))
    return Observation(model, update, labels=truth.labels if grant else None, training=True)


def leak(text: str, layers: int, seed: int, settings: dict) -> Leak:
    """Attack one sentence; the seed is that of the weights, the masks and the search."""
    truth = masked(text, seed)
    torch.manual_seed(seed)
    model = bert_mlm(num_classes=len(english()), in_shape=(LENGTH,), layers=layers)
    grant = settings["targets"] == "granted"
    began = time.process_time()
    attack = text_dlg(**settings, history=ITERATIONS, spell=english().decode, seed=seed)
    result = attack(observe(model, truth, grant=grant))
    seconds = time.process_time() - began
    # a search that ended earlier stays where it ended
    reads = [result.history.get(step, result.tokens) for step in ITERATIONS]
    rest = truth.labels[0] < 0 if grant else torch.ones_like(truth.labels[0], dtype=torch.bool)
    wer = score(result, truth, spell=english().decode)["tokens"]["wer"]
    return Leak(result, [_accuracy(tokens, truth, rest) for tokens in (*reads, result.tokens)], wer, seconds)


def _accuracy(tokens: Sequence[int], truth: Truth, counted: Tensor) -> float:
    found = Transcript(torch.tensor(tokens)[counted].tolist())
    return float(
        score(found, Truth(truth.inputs[:, counted], truth.labels[:, counted]))["tokens"]["accuracy"]
    )


def main(
    seeds: int = 3, depths: Sequence[int] = (2, 4), settings: Sequence[str] = tuple(QUICK)
) -> dict[tuple[int, str], list[list[Leak]]]:
    """Print the tables; return the leaks by layers and setting, a list for each sentence."""
    torch.set_num_threads(1)
    lengths = [len(english().encode_sentence(text)) for text in SENTENCES]
    print(
        f"vocabulary {len(english())}, tokens {lengths}; token accuracy, mean of {seeds} seeds (the worst)\n"
    )
    found: dict[tuple[int, str], list[list[Leak]]] = {}
    for layers in depths:
        for name in settings:
            leaks = [
                [leak(text, layers, seed, SETTINGS[name]) for seed in range(seeds)] for text in SENTENCES
            ]
            found[layers, name] = leaks
            print(_table(f"BERT, {layers} layers, {name}", leaks), flush=True)
    print(_example(found[depths[-1], settings[-1]]))
    print(_rows_found(depths[0], seeds))
    return found


def _table(title: str, leaks: Sequence[Sequence[Leak]]) -> str:
    columns = [f"Example {number}" for number, _ in enumerate(leaks, 1)]
    lines = [f"| {title} | {' | '.join(columns)} |", f"|{'---|' * (len(leaks) + 1)}"]
    for row, label in enumerate((*(f"Iters = {step}" for step in ITERATIONS), "End")):
        cells = [[one.accuracy[row] for one in runs] for runs in leaks]
        lines.append(f"| {label} | {' | '.join(f'{mean(cell):.3f} ({min(cell):.3f})' for cell in cells)} |")
    words = [[one.wer for one in runs] for runs in leaks]
    lines.append(f"| WER | {' | '.join(f'{mean(cell):.3f} ({max(cell):.3f})' for cell in words)} |")
    seconds = [f"{mean(one.seconds for one in runs):.0f}" for runs in leaks]
    return "\n".join([*lines, f"| CPU s | {' | '.join(seconds)} |", ""])


def _example(leaks: Sequence[Sequence[Leak]]) -> str:
    """Show what was read of each sentence with the first seed, as the paper does."""
    lines = []
    for number, (text, runs) in enumerate(zip(SENTENCES, leaks, strict=True), 1):
        lines.append(f"Example {number}: {text}")
        history = runs[0].result.history
        lines += [f"  Iters = {step}: {english().decode(history[step])}" for step in sorted(history)]
        lines.append(f"  End: {runs[0].result.text}")
    return "\n".join(lines)


def _rows_found(layers: int, seeds: int) -> str:
    """Say how often the rows of the embeddings alone tell exactly which tokens a sentence has."""
    exact = []
    for tied in (False, True):
        hits = 0
        for text in SENTENCES:
            for seed in range(seeds):
                truth = masked(text, seed)
                torch.manual_seed(seed)
                model = bert_mlm(len(english()), (LENGTH,), layers=layers, tied=tied)
                tokens = embedding_rows()(observe(model, truth, grant=False)).labels
                hits += set(tokens.tolist()) == set(truth.inputs[0].tolist())
        exact.append(f"{hits} of {len(SENTENCES) * seeds} {'tied' if tied else 'untied'}")
    return f"\nthe set of input tokens by embedding_rows, exact: {', '.join(exact)}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="benchmarks.text", description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--layers", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--settings", nargs="+", default=list(QUICK), choices=list(SETTINGS))
    given = parser.parse_args()
    main(given.seeds, given.layers, given.settings)
