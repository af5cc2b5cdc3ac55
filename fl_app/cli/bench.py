"""``fl-app bench DEFENSE``: judge a defense by the fixed criterion, and put it on the leaderboard."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from fl_app.bench.board import card_page, find_cards, markdown_board, write_board
from fl_app.bench.card import Card
from fl_app.bench.criterion import criterion
from fl_app.bench.effort import MINUTES, SIZES, effort_of
from fl_app.bench.run import Bench
from fl_app.bench.subject import subject_of
from fl_app.cli.guard import INTERRUPTED
from fl_app.cli.own_code import import_from_here
from fl_app.config.compose import ConfigError
from fl_app.console.logs import show_logs
from fl_app.results.writing import write_text

FALLS = 3
"""Exit code of a defense that the criterion refutes."""


def main(arguments: list[str] | None = None) -> None:
    """Run ``bench DEFENSE [defense.KEY=VALUE …]``, or ``bench --board PLACE …``."""
    given = sys.argv[1:] if arguments is None else arguments
    args = _parser().parse_intermixed_args(given)
    if args.board:
        _board(args)
        return
    if not args.words:
        raise ConfigError(
            "bench: expected a defense: a choice such as dgp, module:function, file.py:function or file.yaml"
        )
    if args.minutes is not None and not 0 < args.minutes < float("inf"):
        raise ConfigError(f"--minutes: expected a number above 0, got {args.minutes:g}")
    import_from_here()
    subject = subject_of(args.words[0], args.words[1:])
    show_logs(False)
    bench = Bench(
        subject,
        effort_of(args.size, criterion(), tuning=args.tuning),
        args.into,
        MINUTES[args.size] if args.minutes is None else args.minutes,
        lambda line: print(line, flush=True),
        command=["fl-app", "bench", *given],
        tuning=args.tuning,
        only=_parts(args.only),
    )
    try:
        card = bench.run()
    except KeyboardInterrupt:
        print("fl-app bench: interrupted; the same command goes on with what is left", file=sys.stderr)
        sys.exit(INTERRUPTED)
    page = bench.folder / "card.html"
    write_text(page, card_page(card))
    board = write_board(args.into, [args.into / "cards"])
    print(_summary(card))
    print(f"card: {page.resolve()}\nleaderboard: {board.resolve()}")
    if card.verdict == "falls":
        sys.exit(FALLS)


def _board(args: argparse.Namespace) -> None:
    places = [Path(word) for word in args.words] or [args.into / "cards"]
    if missing := [str(place) for place in places if not place.exists()]:
        raise ConfigError(f"--board: {missing[0]}: no such file or folder")
    cards, refused = find_cards(places)
    if not cards:
        reasons = f": {refused[0]}" if refused else ""
        raise ConfigError(f"--board: no card in {', '.join(map(str, places))}{reasons}")
    print(markdown_board(cards))
    print(f"leaderboard: {write_board(args.into, places).resolve()}")


def _parts(text: str) -> list[str]:
    known = [*(view.name for view in criterion().leak.views), "bytes", "accuracy"]
    chosen = [word for word in text.split(",") if word]
    if strange := [word for word in chosen if word not in known]:
        raise ConfigError(f"--only: expected some of {', '.join(known)}, got {strange[0]!r}")
    return chosen


def _summary(card: Card) -> str:
    lines = [f"{card.defense}: {card.verdict}", f"  {card.why}"]
    lines += [f"  not measured: {line}" for line in card.not_measured]
    return "\n".join(lines)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="fl-app bench",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Judge a defense by the fixed criterion and write a card that joins a leaderboard.\n\n"
        "DEFENSE: a choice (dgp), package.module:function, file.py:function, or a YAML file with _target_;\n"
        "then settings such as defense.k1=0.1. Data sets of the criterion are read in $FL_APP_DATA.\n"
        "exit code 3: the criterion refutes it. The same command goes on where the time was up.",
    )
    parser.add_argument("words", nargs="*", metavar="DEFENSE", help="the defense and its settings")
    parser.add_argument("--size", choices=SIZES, default="small", help="default: small")
    parser.add_argument("--minutes", type=float, help="time budget; default: 10 (small), 600 (full)")
    parser.add_argument("--into", type=Path, default=Path("bench"), metavar="FOLDER", help="default: bench")
    parser.add_argument(
        "--tuning", action="store_true", help="use the seed for tuning: such a card is no result"
    )
    parser.add_argument(
        "--only", default="", metavar="PART,…", help="parts: views, bytes, accuracy; default: all of them"
    )
    parser.add_argument(
        "--board", action="store_true", help="make the leaderboard of the cards in files or folders"
    )
    return parser
