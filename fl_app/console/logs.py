"""Log level of the terminal; a run's own log is in its folder."""

from __future__ import annotations

import logging


def show_logs(verbose: bool) -> None:
    """Show warnings (or everything) of ours and of Flower."""
    level = logging.INFO if verbose else logging.WARNING
    logging.basicConfig(level=level, format="%(levelname)s %(name)s: %(message)s")
    for handler in logging.getLogger().handlers:
        handler.setLevel(level)
    flower = logging.getLogger("flwr")
    flower.setLevel(level)
    flower.propagate = False  # it has a console handler of its own


def show_rounds() -> None:
    """Show the rounds and results of a foreign app, as Flower's strategies log them."""
    logging.getLogger("flwr").setLevel(logging.INFO)
