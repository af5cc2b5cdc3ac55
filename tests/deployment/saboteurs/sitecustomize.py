"""Makes a node misbehave: Python runs this first in every process that has this folder in its path.

``SABOTAGE=garbage``: the updates of its client are noise. ``SABOTAGE=twice``: it hands in every answer twice.
"""

import os
import random
import sys
from dataclasses import replace
from pathlib import Path

KIND = os.environ.get("SABOTAGE")
COMMANDS = {Path(word).name for word in sys.orig_argv[:3]}

if KIND == "garbage" and "flwr-clientapp" in COMMANDS:
    from flwr.clientapp import ClientApp

    honest_call = ClientApp.__call__

    def answer_with_noise(self, message, context):
        reply = honest_call(self, message, context)
        if message.metadata.message_type == "train":
            from fl_app.wire.messages import pack_reply, unpack_reply

            reply.content = pack_reply(replace(unpack_reply(reply), update=random.randbytes(500)))
        return reply

    ClientApp.__call__ = answer_with_noise

if KIND == "twice" and "flower-supernode" in COMMANDS:
    from flwr.supernode.fleet_http_client import FleetHttpClient

    honest_push, honest_pull = FleetHttpClient.PushMessages, FleetHttpClient.PullMessages
    handed_in = []

    def push_and_remember(self, request):
        handed_in.append(request)
        return honest_push(self, request)

    def push_again_and_pull(self, request):
        while handed_in:  # an answer that is there by now, with all its parts
            honest_push(self, handed_in.pop())
            print("handed in for the second time", flush=True)
        return honest_pull(self, request)

    FleetHttpClient.PushMessages = push_and_remember
    FleetHttpClient.PullMessages = push_again_and_pull
