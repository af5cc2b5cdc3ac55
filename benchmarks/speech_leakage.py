"""Leakage of transcripts from updates of a speech model: tables 2, 3 and 5 of Dang et al. 2021.

``python -m benchmarks.speech_leakage WORK bag [--utterances N] [--local-steps K] [--told] [--limit …]``: the
bag of words and the length, for each of the utterances, or for groups of N in each of K local steps.
``python -m benchmarks.speech_leakage WORK transcript [--scale cpu] [--rows …] [--limit …]``: the tokens in
order, found without the bag of words, or with it in one search or in the best of five.
The model is untrained, or has learnt for ``--trained`` steps from three of four recordings; the attacked
utterances are the other ones then.

The utterances are those of ``utterances.txt`` in `--transcripts`, a name and a text a line, with 16k word
pieces in ``wordpieces.txt`` beside it. Those that `--audio` has are heard, the others have random
features of `FRAMES` frames. Each result is kept below WORK, and what is there is not computed again;
``--finished`` computes nothing, and prints the table of what is there.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from attacks.base import LabelSet
from attacks.score import score
from attacks.sequences import bag_of_words, transcript
from fl_app.data import PADDING
from fl_app.data.librispeech import RATE
from fl_app.data.log_mel import log_mel, standardise
from fl_app.data.word_pieces import Vocabulary, read_pieces
from fl_app.models import las
from fl_app.text.word_errors import word_error_rate
from fl_app.training.predictions import transcribe
from fl_app.types import Observation, Truth, Update

DATA = Path("../shared/data")
BANDS = 40
FRAMES = 300
"""Frames of random features: three seconds."""
BATCH = 8
"""Recordings in a step of training."""


@dataclass(frozen=True, eq=False)
class Utterance:
    """A transcript, and its audio as a client has it."""

    name: str
    text: str
    tokens: list[int]
    """With the end."""
    features: Tensor
    heard: bool
    """Whether the features are those of a recording."""


@dataclass(frozen=True)
class Scale:
    """Part of table 5 that is computed."""

    utterances: int
    pieces: int
    """The most that an utterance may have, without its end."""
    steps: int


@dataclass(frozen=True)
class Row:
    """A row of table 5."""

    bag: bool
    restarts: int


SCALES = {"cpu": Scale(10, 6, 4_000), "paper": Scale(402, 50, 40_000)}
ROWS = {"none": Row(False, 1), "bag": Row(True, 1), "bag5": Row(True, 5)}


def read_utterances(transcripts: Path, audio: Path, vocabulary: Vocabulary) -> list[Utterance]:
    """Return all utterances in the order of their file."""
    recordings = {path.stem: path for path in audio.rglob("*.flac")}
    found = []
    for number, line in enumerate((transcripts / "utterances.txt").read_text().splitlines()):
        name, _, text = line.partition(" ")
        tokens = [*vocabulary.encode(text), vocabulary.end]
        if name in recordings:
            features = _hear(recordings[name])
        else:
            features = torch.randn(FRAMES, BANDS, generator=torch.Generator().manual_seed(number))
        found.append(Utterance(name, vocabulary.decode(tokens), tokens, features, name in recordings))
    return found


def untrained(vocabulary: Vocabulary) -> nn.Module:
    """Return the model before its first step; its decoder has a width of 128."""
    torch.manual_seed(0)
    return las(len(vocabulary), (FRAMES, BANDS))


def held_out(utterances: Sequence[Utterance]) -> tuple[list[Utterance], list[Utterance]]:
    """Return three of four recorded utterances to learn from, and the fourth to attack."""
    heard = [one for one in utterances if one.heard]
    return [one for number, one in enumerate(heard) if number % 4], heard[::4]


def trained(
    vocabulary: Vocabulary, said: Sequence[Utterance], steps: int, path: Path, lr: float = 1e-3
) -> nn.Module:
    """Return the model after so many steps of Adam on random batches, kept at ``path``."""
    model = untrained(vocabulary)
    if not path.exists():
        parameters = dict(model.named_parameters())
        optimiser = torch.optim.Adam(parameters.values(), lr=lr)
        generator = torch.Generator().manual_seed(0)
        for step in range(steps):
            chosen = torch.randperm(len(said), generator=generator)[:BATCH].tolist()
            loss = _loss(model, [said[number] for number in chosen], vocabulary.start)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            if (step + 1) % 50 == 0:
                print(f"step {step + 1} of {steps}: loss {loss.item():.2f}", flush=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.save(model.state_dict(), path)
    model.load_state_dict(torch.load(path, weights_only=True))
    return model


def gradient(model: nn.Module, said: Sequence[Utterance], start: int, names: Sequence[str]) -> Update:
    """Return the gradient of the loss that clients minimise, of the named parameters."""
    loss = _loss(model, said, start)
    return dict(zip(names, torch.autograd.grad(loss, [model.get_parameter(n) for n in names]), strict=True))


def observe(model: nn.Module, batches: Sequence[Sequence[Utterance]], start: int, lr: float) -> Observation:
    """Return what the server sees of one gradient, or of a step of SGD on each of several batches."""
    names = [name for name, _ in model.named_parameters()]
    size = len(batches[0])
    if len(batches) == 1:
        return Observation(model, gradient(model, batches[0], start, names), batch_size=size)
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    for batch in batches:
        slopes = gradient(model, batch, start, names)
        with torch.no_grad():
            for name, slope in slopes.items():
                model.get_parameter(name).sub_(lr * slope)
    update = {name: model.get_parameter(name).detach() - before[name] for name in names}
    model.load_state_dict(before)
    return Observation(
        model, update, lr=lr, local_steps=len(batches), local_batch_size=size, batch_size=size * len(batches)
    )


def bag_cell(model: nn.Module, batches: Sequence[Sequence[Utterance]], args: argparse.Namespace) -> dict:
    """Attack the update of some batches, and say how well that went."""
    said = [token for batch in batches for one in batch for token in one.tokens]
    obs = observe(model, batches, args.start, args.lr)
    began = time.process_time()
    found = bag_of_words(len(said) if args.told else None)(obs)
    seconds = time.process_time() - began
    truth = Truth(torch.zeros(len(said), 1, 1, 1), torch.tensor(said))
    return {
        "names": [one.name for batch in batches for one in batch],
        "heard": sum(one.heard for batch in batches for one in batch),
        "length": len(said),
        "rank": found.rank,
        **score(LabelSet(found.labels), truth)["labels"],  # the set alone, as in the paper
        "seconds": seconds,
        "notes": list(found.notes),
    }


def transcript_cell(model: nn.Module, one: Utterance, row: Row, steps: int, vocabulary: Vocabulary) -> dict:
    """Attack the gradient of one utterance."""
    obs = observe(model, [[one]], vocabulary.start, 0.0)
    began = time.process_time()
    attack = transcript(bag=row.bag, steps=steps, restarts=row.restarts, start=vocabulary.start)
    found = attack(obs)
    seconds = time.process_time() - began
    pieces = len(bag_of_words()(obs).labels) if row.bag else len(vocabulary)
    return {
        "name": one.name,
        "heard": one.heard,
        "said": one.text,
        "found": vocabulary.decode(found.tokens),
        "exact": float(list(found.tokens) == one.tokens),
        "tokens_right": sum(a == b for a, b in zip(found.tokens, one.tokens, strict=False)),
        "length": len(one.tokens),
        "variables": len(found.tokens) * (pieces + model.decoder.context),
        "objective": found.objective,
        "seconds": seconds,
        "notes": list(found.notes),
    }


def bag_line(cells: Sequence[dict]) -> str:
    """Return the means of one case: length error, precision, recall, F1, exact matches, seconds."""
    error = mean(abs(cell["rank"] - cell["length"]) for cell in cells)
    means = [mean(cell[key] for cell in cells) for key in ("precision", "recall", "f1", "exact")]
    numbers = " | ".join(f"{value:.3f}" for value in (error, *means))
    spent = [cell["seconds"] for cell in cells]
    return f"| {len(cells)} | {numbers} | {mean(spent):.2f} | {max(spent):.2f} |"


def transcript_line(name: str, cells: Sequence[dict]) -> str:
    """Return a row of table 5."""
    errors = word_error_rate([cell["said"] for cell in cells], [cell["found"] for cell in cells])
    variables, exact, spent = (mean(cell[key] for cell in cells) for key in ("variables", "exact", "seconds"))
    right = sum(cell["tokens_right"] for cell in cells) / sum(cell["length"] for cell in cells)
    numbers = " | ".join(f"{value:.3f}" for value in (errors, exact, right))
    return f"| {name} | {len(cells)} | {variables:,.0f} | {numbers} | {spent:.0f} |"


def main() -> None:
    """Compute what is missing, and print the table of all there is."""
    args = _arguments()
    torch.set_num_threads(1)
    vocabulary = read_pieces(args.transcripts / "wordpieces.txt")
    args.start = vocabulary.start
    utterances = read_utterances(args.transcripts, args.audio, vocabulary)
    model = untrained(vocabulary)
    if args.trained:
        taught, utterances = held_out(utterances)
        model = trained(vocabulary, taught, args.trained, args.work / f"model-{args.trained}.pt")
        loss, before = (
            mean(_losses(one, utterances, vocabulary.start)) for one in (model, untrained(vocabulary))
        )
        print(f"{args.trained} steps on {len(taught)} recordings: loss on others {before:.2f} -> {loss:.2f}")
    if args.what == "bag":
        _bags(args, model, utterances)
    else:
        _transcripts(args, model, utterances, vocabulary)


def _bags(args: argparse.Namespace, model: nn.Module, utterances: Sequence[Utterance]) -> None:
    told = "-told" if args.told else ""
    folder = args.work / f"bag-n{args.utterances}-k{args.local_steps}{told}{_stage(args)}"
    groups = list(_groups(utterances, args.utterances, args.local_steps))[: args.limit]
    asked = {
        folder / f"{number}.json": partial(bag_cell, model, batches, args)
        for number, batches in enumerate(groups)
    }
    cells = list(_kept(asked, args.finished))
    if not cells:
        print("no update was attacked yet")
        return
    heard, number = sum(c["heard"] for c in cells), sum(len(c["names"]) for c in cells)
    print(f"N={args.utterances} K={args.local_steps}, {heard} of {number} utterances have a recording")
    print("| updates | LE | P | R | F1 | EM | CPU s | slowest |\n|---|---|---|---|---|---|---|---|")
    print(bag_line(cells), flush=True)


def _transcripts(
    args: argparse.Namespace, model: nn.Module, utterances: Sequence[Utterance], vocabulary: Vocabulary
) -> None:
    scale = SCALES[args.scale]
    short = [one for one in utterances if len(one.tokens) <= scale.pieces + 1]
    order = torch.randperm(len(short), generator=torch.Generator().manual_seed(0))
    chosen = [short[number] for number in order.tolist()][: scale.utterances][: args.limit]
    tables = []
    for name in args.rows:
        folder = args.work / f"transcript-{args.scale}-{name}{_stage(args)}"
        asked = {
            folder / f"{one.name}.json": partial(
                transcript_cell, model, one, ROWS[name], scale.steps, vocabulary
            )
            for one in chosen
        }
        cells = []
        for cell in _kept(asked, args.finished):
            cells.append(cell)
            progress = f"{name}, {len(cells)} of {len(chosen)}"
            print(
                f"{progress}: {cell['said']!r} read as {cell['found']!r}, {cell['seconds']:.0f} s", flush=True
            )
        tables += [transcript_line(name, cells)] if cells else []
    print("| row | utterances | variables | WER | EM | tokens | CPU s |\n|---|---|---|---|---|---|---|")
    print("\n".join(tables))


def _groups(utterances: Sequence[Utterance], size: int, steps: int) -> Iterator[list[list[Utterance]]]:
    """Yield ``steps`` batches of ``size`` each: single ones in their order, by length, others mixed."""
    together = size * steps
    order = list(range(len(utterances)))
    if together > 1:
        order = torch.randperm(len(order), generator=torch.Generator().manual_seed(0)).tolist()
    for first in range(0, len(order) - together + 1, together):
        chosen = [utterances[number] for number in order[first : first + together]]
        yield [chosen[begin : begin + size] for begin in range(0, together, size)]


def _kept(asked: Mapping[Path, Callable[[], dict]], finished: bool) -> Iterator[dict[str, Any]]:
    """Yield what is at each path, computed where it is not there yet, or, if ``finished``, left out."""
    for path, compute in asked.items():
        if not path.exists() and not finished:
            content = compute()
            path.parent.mkdir(parents=True, exist_ok=True)
            unfinished = path.with_suffix(".part")
            unfinished.write_text(json.dumps(content, indent=1) + "\n")
            unfinished.rename(path)
        if path.exists():
            yield json.loads(path.read_text())


def _stage(args: argparse.Namespace) -> str:
    return f"-trained{args.trained}" if args.trained else ""


def _loss(model: nn.Module, said: Sequence[Utterance], start: int) -> Tensor:
    """Return the loss that clients minimise."""
    features = pad_sequence([one.features for one in said], batch_first=True)
    labels = pad_sequence([torch.tensor(one.tokens) for one in said], batch_first=True, padding_value=PADDING)
    return F.cross_entropy(*transcribe(start)(model, features, labels))


@torch.no_grad()
def _losses(model: nn.Module, said: Sequence[Utterance], start: int) -> list[float]:
    return [float(_loss(model, [one], start)) for one in said]


def _hear(path: Path) -> Tensor:
    import soundfile

    waveform, _ = soundfile.read(path, dtype="float32")
    return standardise(log_mel(torch.from_numpy(waveform), RATE, BANDS))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks.speech_leakage", description=__doc__)
    parser.add_argument("work", type=Path)
    parser.add_argument("what", choices=("bag", "transcript"))
    parser.add_argument("--transcripts", type=Path, default=DATA / "librispeech-transcripts")
    parser.add_argument("--audio", type=Path, default=DATA / "speech")
    parser.add_argument("--limit", type=int, help="how many updates at most")
    parser.add_argument("--utterances", type=int, default=1, help="in each batch (N)")
    parser.add_argument("--local-steps", type=int, default=1, help="with a batch each (K)")
    parser.add_argument("--lr", type=float, default=0.1, help="of local steps")
    parser.add_argument("--told", action="store_true", help="the attacker is told the length")
    parser.add_argument("--trained", type=int, default=0, help="steps of training before the update")
    parser.add_argument("--finished", action="store_true", help="compute nothing, print what is there")
    parser.add_argument("--scale", choices=SCALES, default="cpu")
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS))
    return parser.parse_args()


if __name__ == "__main__":
    main()
