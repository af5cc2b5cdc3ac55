"""The ε ledgers of a run: for record-level releases of clients, and for cohorts under client-level noise."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict

from fl_app.privacy import (
    ClientAccount,
    ClientLevel,
    ClientNoise,
    Ledger,
    NoiseShares,
    RecordLevel,
    Release,
    TakeTurns,
    TurnAccount,
)
from fl_app.secagg import smallest_threshold
from fl_app.storage.tree_file import Tree


class Charges:
    """Cost of the releases that clients report with their updates."""

    def __init__(self) -> None:
        self._ledger = Ledger()
        self._releases: dict[int, Release] = {}
        """Last release of every client: the price of a round without a report."""
        self._owed: dict[int, int] = {}

    @property
    def epsilon(self) -> float | None:
        """Largest cost of any client; None before the first release."""
        return self._ledger.epsilon()

    @property
    def clients(self) -> Collection[int]:
        """Clients with releases."""
        return self._ledger.spent.keys()

    def spent_by(self, client: int) -> Mapping[tuple[float, float], int]:
        """Return the steps of a client's releases by sampling rate and noise multiplier."""
        return self._ledger.spent.get(client, {})

    def remember(self, client: int, release: Release | None) -> None:
        """Note the price of a client's round that is charged although its update is not used."""
        if release is not None:
            self._releases[client] = release

    def owe(self, clients: Iterable[int]) -> None:
        """Charge one more round to ``clients`` as soon as their price is known."""
        for client in clients:
            self._owed[client] = self._owed.get(client, 0) + 1

    def charge(self, asked: Iterable[int], told: Mapping[int, Release | None]) -> dict[int, str]:
        """Charge a round to all clients that were asked: a failed client may have released its update, too.

        ``told`` holds the releases of clients that answered. Returns the clients without a valid release,
        with reasons.
        """
        refused: dict[int, str] = {}
        for client in asked:
            release = told[client] if client in told else self._releases.get(client)
            if release is None:
                continue
            try:
                self._ledger.charge(client, release)
            except ValueError as error:
                refused[client] = str(error)
            else:
                self._releases[client] = release
        for client in self._owed.keys() & self._releases.keys():
            for _ in range(self._owed.pop(client)):
                self._ledger.charge(client, self._releases[client])
        return refused

    def history(self) -> dict[str, Tree]:
        """Return the ledger as plain values."""
        return {
            "ledger": asdict(self._ledger),
            "releases": {client: asdict(release) for client, release in self._releases.items()},
            "owed": self._owed,
        }

    def restore(self, history: Mapping[str, Tree]) -> None:
        """Go on from what `history` returned."""
        self._ledger = Ledger(**history["ledger"])
        self._releases = {client: Release(**told) for client, told in history["releases"].items()}
        self._owed = history["owed"]


class CohortCharges:
    """Cost of rounds in which every client of a cohort adds its share of the noise."""

    def __init__(self, privacy: ClientLevel) -> None:
        self.privacy = privacy
        self.account: ClientAccount = privacy.account()

    def shares(self, cohort: int) -> NoiseShares:
        """Return the noise of a cohort."""
        cohort = max(cohort, 1)  # without a cohort the server adds the whole noise
        return self.privacy.shares(cohort, smallest_threshold(cohort) if self.privacy.thresholds else None)

    def allows(self) -> bool:
        """Return whether one more round stays within the budget."""
        return self.account.allows(rate=self.privacy.accounted_rate, multiplier=self.privacy.sigma)

    def after(self) -> float:
        """Return epsilon after one more round."""
        return self.account.after(rate=self.privacy.accounted_rate, multiplier=self.privacy.sigma)

    def charge(self, cohort: int, drawn: Collection[int], counted: int) -> None:
        """Charge a round of ``cohort`` clients; ``counted`` of them are in the sum."""
        self.account.charge(
            rate=self.privacy.accounted_rate,
            multiplier=self.privacy.sigma,
            cohort=drawn,
            server_multiplier=self.shares(cohort).for_server(counted or None),
        )

    def charge_lost(self, clients: Collection[int]) -> None:
        """Charge an interrupted round, at the price of the least noise."""
        self.account.charge(
            rate=self.privacy.accounted_rate,
            multiplier=self.privacy.sigma,
            cohort=clients,
            server_multiplier=self.shares(len(clients)).for_server(),
        )

    def history(self) -> dict[str, Tree]:
        """Return the ledger as plain values."""
        return {"models": asdict(self.account.models), "server": self.account.server}

    def restore(self, history: Mapping[str, Tree]) -> None:
        """Go on from what `history` returned."""
        self.account.models = Ledger(**history["models"])
        self.account.server = history["server"]


class TurnCharges:
    """Cost of rounds in which clients take turns and the server adds the noise."""

    def __init__(self, privacy: TakeTurns) -> None:
        self.privacy = privacy
        self.account: TurnAccount = privacy.account()

    def shares(self, cohort: int) -> NoiseShares:
        """Return the noise of a cohort: none."""
        return self.privacy.shares(max(cohort, 1), None)

    def allows(self) -> bool:
        """Return whether one more round stays within the budget."""
        return self.account.allows()

    def after(self) -> float:
        """Return epsilon after one more round."""
        return self.account.after()

    def charge(self, cohort: int, drawn: Collection[int], counted: int) -> None:
        """Charge a round to the clients whose turn it was."""
        self.account.charge(drawn)

    def charge_lost(self, clients: Collection[int]) -> None:
        """Charge an interrupted round."""
        self.account.charge_lost(clients)

    def history(self) -> dict[str, Tree]:
        """Return the account as plain values."""
        return {"rounds": self.account.rounds, "lost": self.account.lost, "server": self.account.server}

    def restore(self, history: Mapping[str, Tree]) -> None:
        """Go on from what `history` returned."""
        self.account.rounds, self.account.lost = history["rounds"], history["lost"]
        self.account.server = history["server"]


class RecordCharges:
    """Cost of rounds to single records of the clients that took part, where each step has noise for them."""

    def __init__(self, records: RecordLevel) -> None:
        self._release = records.release
        self._ledger = Ledger(records.accountant)

    @property
    def epsilon(self) -> float:
        """Largest cost to a record of any client, against everybody; 0 before anybody took part."""
        return self._ledger.epsilon() or 0.0

    def charge(self, clients: Iterable[int]) -> None:
        """Charge a round to all clients that were asked, whether or not their vector is in the sum."""
        for client in clients:
            self._ledger.charge(client, self._release)

    def history(self) -> dict[str, Tree]:
        """Return the ledger as plain values."""
        return asdict(self._ledger)

    def restore(self, history: Mapping[str, Tree]) -> None:
        """Go on from what `history` returned."""
        self._ledger = Ledger(**history)


def charges_of(privacy: ClientNoise) -> CohortCharges | TurnCharges:
    """Open the ledger of a run."""
    if isinstance(privacy, TakeTurns):
        return TurnCharges(privacy)
    if isinstance(privacy, ClientLevel):
        return CohortCharges(privacy)
    raise TypeError(f"charges_of: expected ClientLevel or TakeTurns, got {type(privacy).__name__}")
