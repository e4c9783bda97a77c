# %% [markdown]
# # From data to a report to a prediction
# Five clients hold different digits. They train together with MP-FedCL, FedProto and FedAvg; then the model is used.
# %%
import tempfile
from pathlib import Path

import protofed
from protofed.data import load
from protofed.report.html import gather, write_report
from protofed.runs.folder import RunFolder
from protofed.serving.export import export

here = Path(tempfile.mkdtemp())
data = {"dataset": "digits", "split": "dirichlet", "alpha": 0.1, "clients": 5}
training = {"model": "mlp", "lr": 0.02, "rounds": 15}
# %% One run, in memory: what came out, named model/test/rule
result = protofed.run("mp-fedcl", **data, **training)
result
# %% Three methods, two seeds, in a folder
methods = ["mp-fedcl", "fedproto", "fedavg"]
comparison = protofed.compare(methods, seeds=2, out=here / "compared", jobs=1, **data, **training)
comparison.plot()
# %% In numbers
for row in comparison.rows:
    score, sent = row.accuracy["own/all/nearest"], row.bytes_up_per_round.mean
    print(f"{row.method:10} own/all/nearest {score.mean:.1f} ± {score.std:.1f} %, {sent / 1e3:,.0f} kB up a round")
# %% The report: one HTML file
report = gather([here / "compared"])
write_report(report, here / "report.html")
print(f"{(here / 'report.html').stat().st_size / 1e3:.0f} kB")
# %% Its summary, in words
for row in report["summary"]:
    cell = row["cells"]["own/all/nearest"]
    print(row["label"], "is best" if cell["best"] else cell["says"] or "does not answer by this rule: not compared")
# %% A run with a folder can be exported
protofed.run("mp-fedcl", out=here / "run", **data, **training)
export(RunFolder.open(here / "run")).write(here / "model")
sorted(path.name for path in (here / "model").iterdir())
# %% The exported model predicts, and says whose prototype won: answer, client, label
model = protofed.load(here / "model")
test = load("digits").test
found = model.predict(test.x[:5])
list(zip(found.classes, found.clients.tolist(), test.labels[:5].tolist(), strict=True))
# %% How often it is right
answers = model.predict(test.x).classes
right = sum(int(name) == label for name, label in zip(answers, test.labels.tolist(), strict=True))
print(f"{100 * right / len(test.labels):.1f} % of {len(test.labels)} test images")
# %% Unlike anything it has seen: refused
noise = test.x[:5].flip(-1).flip(-2) // 2 + 60
print(model.predict(noise, reject=0.05).classes)
# %% The five pictures above, as a notebook shows them
found
