"""The client."""

from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from cnnbn import task

app = ClientApp()


def setup(msg, context):
    net = task.Net()
    net.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    return net, task.load_data(context.node_config["partition-id"], context.run_config["batch-size"])


@app.train()
def train(msg, context):
    net, loader = setup(msg, context)
    loss = task.train(net, loader, msg.content["config"]["lr"])
    metrics = MetricRecord({"train_loss": loss, "num-examples": len(loader.dataset)})
    return Message(RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics}), reply_to=msg)


@app.evaluate()
def evaluate(msg, context):
    net, loader = setup(msg, context)
    metrics = MetricRecord({"accuracy": task.evaluate(net, loader), "num-examples": len(loader.dataset)})
    return Message(RecordDict({"metrics": metrics}), reply_to=msg)
