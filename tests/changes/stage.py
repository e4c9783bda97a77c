"""With --half the server averages weights that 16 bits hold: those of one client come out as such."""

from protofed.experiment import Experiment
from protofed.runs.run import new_run

alone = {"method": "fedavg", "model": "cnn", "train_size": 120, "clients": 1, "rounds": 1, "device": "cpu"}
for half in (False, True):
    run = new_run(Experiment.from_mapping({**alone, "engine": "sequential", "split": "iid", "half": half}))
    run.play_round()
    weights = run.broadcast.weights.values()
    assert all(bool((value.bfloat16().to(value.dtype) == value).all()) for value in weights) is half
