"""ClientApp around the user's training function, for any Flower app."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import cast

import torch
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import Mod
from torch import nn

from fl_app.client.answers import answer_locate, answer_secure, answer_train
from fl_app.client.client import Client, ClientParts, Restored
from fl_app.client.guard import Books, Guard
from fl_app.client.node import account_file, bundle_hash, named_policy, partition_of
from fl_app.client.own_training import Config, OwnFunction, call, train_with
from fl_app.client.refusing import refuse_in_codes
from fl_app.client.secure import SecureSettings
from fl_app.client.vector_client import VectorClient
from fl_app.defenses import Defense, protect
from fl_app.models.described import check_types, describe_module
from fl_app.policy import Noise, Policy, Refusal, RunPlan
from fl_app.privacy import ClientLevel, ClientNoise
from fl_app.training import LocalData, Rules, parameters, state_buffers
from fl_app.transforms import Transform
from fl_app.wire import decode
from fl_app.wire.messages import (
    CHANGE,
    ENDORSE,
    EXAMPLES,
    GRADIENT,
    OFFER,
    PRIVACY,
    SHARE,
    UNMASK,
    UPDATE,
    Identity,
    MessageError,
    Parcel,
    pack_identity,
    pack_metrics,
    unpack_order,
)

_MANY = (1 << 31) - 1
_REFUSED = {"LocalDpMod", "adaptiveclipping_mod", "fixedclipping_mod", "secagg_mod", "secaggplus_mod"}
"""Flower mods that read weights or their legacy form."""


def app(
    model: nn.Module | Callable[[], nn.Module],
    train: OwnFunction,
    *,
    defense: Defense | Transform | None = None,
    privacy: ClientLevel | None = None,
    secagg: SecureSettings | None = None,
    evaluate: OwnFunction | None = None,
    local_steps: int = 1,
    seed: int = 0,
    mods: Sequence[Mod] = (),
) -> ClientApp:
    """Make a ClientApp that answers every message of `fl_app.strategies`.

    ``train(model, context, config)`` trains ``model``, which holds the round's weights, on the node's own
    data and returns the number of samples and metrics. ``config`` is the ``train_config`` of ``start`` with
    ``lr`` and ``server-round``. ``evaluate`` has the same form. ``defense`` rewrites the update before it
    leaves; ``privacy`` and ``secagg`` must be those of the strategy. ``local_steps`` is the most steps of a
    round, for the node's policy. ``seed`` seeds torch in every round.
    """
    for what, given, wanted in (("privacy", privacy, ClientNoise), ("secagg", secagg, SecureSettings)):
        if given is not None and not isinstance(given, wanted):
            raise TypeError(f"app: {what} must be a {wanted.__name__}, got {type(given).__name__}")
    for what, function in (("train", train), ("evaluate", evaluate), *(("mods", mod) for mod in mods)):
        if not callable(function) and not (what == "evaluate" and function is None):
            raise TypeError(f"app: {what} must be callable, got {type(function).__name__}")
    if defense is not None and not isinstance(defense, Defense | Transform):
        raise TypeError(f"app: defense must be a Defense or a Transform, got {type(defense).__name__}")
    maker = _Maker(
        _module(model), train, _checked_defense(defense), privacy, secagg, evaluate, local_steps, seed
    )
    for mod in mods:
        name = getattr(mod, "__name__", type(mod).__name__)
        if name in _REFUSED:
            raise ValueError(
                f"app: {name} reads weights, and updates travel packed: use privacy= or secagg= with FLStd, "
                "FLTop, FLBasic or FLCS, or defense=clip_and_noise(...)"
            )
    made = ClientApp(mods=list(mods))
    guarded = refuse_in_codes(_trusts)
    made.train()(guarded(lambda message, context: answer_train(message, context, maker.client)))
    made.evaluate()(guarded(maker.evaluated))
    made.query("identify")(guarded(_identify))
    made.query("locate")(guarded(lambda message, context: answer_locate(message, context, maker.client)))
    for kind in (OFFER, SHARE, ENDORSE, UNMASK):
        made.query(kind.removeprefix("query."))(guarded(maker.secured(kind)))
    return made


def _module(model: nn.Module | Callable[[], nn.Module]) -> nn.Module:
    made = model() if callable(model) and not isinstance(model, nn.Module) else model
    if not isinstance(made, nn.Module):
        raise TypeError(f"app: model must be a torch.nn.Module or make one, got {type(made).__name__}")
    built = copy.deepcopy(made)
    if not parameters(built):
        raise ValueError("app: model has no parameter that is trained")
    check_types("app", built)
    return built


def _checked_defense(defense: Defense | Transform | None) -> Defense:
    if defense is None:
        return Defense()
    whole = protect(defense=defense)
    if whole.rules != Rules() or whole.model is not None:
        raise ValueError(
            "app: this defense changes training itself, which is your function's affair: apply it inside of "
            "train, or run it by fl_app.run"
        )
    return whole


def _trusts(context: Context) -> bool:
    """Return whether the server may see full errors: the node has no policy."""
    try:
        return named_policy(context) is None
    except Refusal:
        return False


def _identify(message: Message, context: Context) -> Message:
    identity = Identity(*partition_of(context), allow_audit=False, own_data=True)
    return Message(pack_identity(identity), reply_to=message)


@dataclass
class _Samples:
    """Stand-in for a client's data: its size is the number of samples in the last training."""

    count: int = 0

    def __len__(self) -> int:
        return self.count


class _Maker:
    """Factory of the client for each message; it shares models and unpacked blobs within the process."""

    def __init__(
        self,
        model: nn.Module,
        train: OwnFunction,
        defense: Defense,
        privacy: ClientLevel | None,
        secagg: SecureSettings | None,
        evaluate: OwnFunction | None,
        local_steps: int,
        seed: int,
    ) -> None:
        if defense.check is not None:
            defense.check(model)
        secretive = privacy is not None or secagg is not None
        if secretive and defense.scheme is None:
            raise ValueError(
                "app: privacy and secagg take a defense of vectors: fl_std, fl_top, fl_basic, fl_cs"
            )
        if secretive and state_buffers(model):
            raise ValueError("app: a model with buffers sends more than its vector: take GroupNorm layers")
        if privacy is not None and privacy.records is not None:
            raise ValueError(
                "app: noise of records belongs into local steps, which are your function's affair: apply it "
                "inside of train, or run it by fl_app.run"
            )
        if secretive and evaluate is not None:
            raise ValueError("app: evaluate would tell numbers of the data beside privacy or secagg")
        first = next(iter(parameters(model).values()))
        self._model, self._spec = model, describe_module(model)
        self._train, self._evaluate = train, evaluate
        self._defense, self._privacy, self._secagg = defense, privacy, secagg
        self._local_steps = local_steps
        self._parts = partial(
            ClientParts,
            model=self._spec,
            defense=defense,
            device=first.device,
            dtype=first.dtype,
            seed=seed,
            start=None,
            privacy=privacy,
            secure=secagg,
            pin_model=True,
            models={self._spec.hash: model},
            restored=Restored(),
            located=Restored(),
        )

    def client(self, message: Message, parcel: Parcel, context: Context, records: RecordDict) -> Client:
        """Return the client for an order."""
        policy = named_policy(context)
        config, gradient = self._config_of(parcel)
        samples = _Samples()

        def counted(count: int) -> None:
            samples.count = count

        parts = self._parts(
            trainer=train_with(self._train, context, config, gradient=gradient, counted=counted),
            # a policy asks for the number of samples, and only this number is known
            data_of=lambda client, clients: cast(LocalData, samples),
        )
        kind = Client if self._defense.scheme is None else VectorClient
        guard = None if policy is None else self._guard(policy, context, records)
        return kind(parts, *partition_of(context), False, guard)

    def _config_of(self, parcel: Parcel) -> tuple[Config, bool]:
        """Return the config for the user's function, and whether the strategy averages gradients.

        Refuse the order of a strategy that does not go with this app's defense or privacy.
        """
        config = dict(parcel.config)
        update, charged = config.pop(UPDATE, None), config.pop(PRIVACY, None)
        if update not in (GRADIENT, CHANGE):
            raise MessageError(
                f"expected an order whose config has {UPDATE}={GRADIENT} or {CHANGE}, got {update!r}: "
                "the strategy must be one of fl_app.strategies, made from a torch module"
            )
        if (self._defense.scheme is None) != (parcel.plan is None):
            raise MessageError(
                "the app's defense and the strategy do not go together: fl_top goes with FLTop, fl_basic "
                "with FLBasic, fl_cs with FLCS, fl_std with FLStd, all others with FedSGD, FedAvg and ADGP"
            )
        if charged != (None if self._privacy is None else self._privacy.digest):
            raise MessageError(
                "the strategy charges another noise than this app adds: give both the same "
                "privacy=ClientLevel(...)"
            )
        return config, update == GRADIENT

    def evaluated(self, message: Message, context: Context) -> Message:
        """Evaluate the whole model in a message."""
        if self._evaluate is None:
            raise PermissionError("this client has no evaluate function: give one to fl_app.client.app")
        if named_policy(context) is not None:
            raise Refusal("metrics", "a node with a policy evaluates no model that it is sent")
        parcel, model = unpack_order(message), self._model
        if parcel.order.model_hash != self._spec.hash:
            raise PermissionError("the model to evaluate is not this client's")
        weights = {name: p.detach() for name, p in parameters(model).items()}
        beside = {name: b.detach() for name, b in state_buffers(model).items()}
        with torch.no_grad():
            for like, blob in ((weights, parcel.model), (beside, parcel.buffers)):
                for name, tensor in decode(blob, like).items() if blob else ():
                    like[name].copy_(tensor)
        own = copy.deepcopy(model).eval()  # whatever the function does to it
        samples, metrics = call(self._evaluate, "evaluate", own, context, parcel.config)
        return Message(pack_metrics(metrics | {EXAMPLES: float(samples)}), reply_to=message)

    def secured(self, kind: str) -> Callable[[Message, Context], Message]:
        """Return the handler of one of the exchanges of secure aggregation."""

        def handle(message: Message, context: Context) -> Message:
            policy = named_policy(context)
            return answer_secure(
                kind,
                message,
                context,
                self._secagg,
                min_cohort=1 if policy is None else policy.min_cohort,
                min_difference=0 if policy is None else policy.secure_aggregation.min_difference,
                guarded=policy is not None,
            )

        return handle

    def _guard(self, policy: Policy, context: Context, records: RecordDict) -> Guard:
        privacy = self._privacy
        plan = RunPlan(
            model=type(self._model).__name__,
            model_hash=self._spec.hash,
            steps=self._local_steps,
            rounds=_MANY,
            clients=partition_of(context)[1],
            secagg=self._secagg is not None,
            noise=None if privacy is None else Noise("client", privacy.delta, privacy.epsilon),
        )
        return Guard(policy, plan, Books(account_file(context), records), context.run_id, bundle_hash())
