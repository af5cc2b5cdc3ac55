"""One run on the server: training, attack, result files, checkpoints and resumption."""
