// Accuracies over rounds, bytes or seconds: mean and spread over seeds.
(() => {
  const { make, mean, deviation, number, chart, switches, sortable, by } = protofed;
  const WORDS = { rounds: "round", bytes: "bytes", seconds: "seconds" };

  // Of a line each seed's values, and their mean and spread by round.
  const line = (runs, over, valuesOf) => {
    const found = new Map();
    const seeds = runs.filter((run) => valuesOf(run)).map((run) => {
      const { rounds, values } = valuesOf(run);
      return { name: `seed ${run.seed}`, points: rounds.map((round, n) => {
        const x = over === "rounds" ? round : run[over][run.rounds.indexOf(round)], y = values[n];
        if (y !== null) { if (!found.has(round)) found.set(round, []); found.get(round).push([x, y]); }
        return [x, y];
      }) };
    });
    const points = [...found.entries()].sort((a, b) => a[0] - b[0]).map(([, seen]) => [mean(seen.map((p) => p[0])), mean(seen.map((p) => p[1])), deviation(seen.map((p) => p[1]))]);
    return { points, seeds };
  };
  const series = (view, kept, valuesOf) => view.shown().map((name) => {
    const found = line(view.data.lines[name], kept.over, valuesOf);
    return { name: view.called(name), n: view.place(name), points: found.points, seeds: kept.seeds ? found.seeds : [] };
  });
  const over = { name: "over", label: "over", options: () => [["rounds", "rounds"], ["bytes", "bytes sent, up and down"], ["seconds", "seconds"]] };
  const axes = [{ name: "seeds", label: "each seed", check: true }, { name: "logx", label: "log across", check: true }, { name: "logy", label: "log up", check: true }];
  Object.assign(protofed, { line, series, over, axes, WORDS });

  const accuracy = (score) => (run) => (run.curves[score] ? { rounds: run.tested, values: run.curves[score] } : null);
  const best = (view) => { const means = view.data.summary.map((row) => row.cells[view.score]).filter(Boolean).map((cell) => cell.mean); return means.length ? Math.floor(Math.max(...means) * 0.9) : 50; };
  const draw = (at, view, kept) => {
    chart(at, view, series(view, kept, accuracy(view.score)), { xlabel: WORDS[kept.over], ylabel: `${view.score}, %`, say: (value) => value.toFixed(2), ...kept });
    at.append(switches(view.lines(), view));
    const lower = view.data.lower.includes(view.score);
    const rows = view.shown().map((name) => [name, ...Object.keys(WORDS).map((axis) => {
      const first = line(view.data.lines[name], axis, accuracy(view.score)).points.find((point) => (lower ? point[1] <= kept.target : point[1] >= kept.target));
      return first ? by(first[0], number(first[0])) : by(Infinity, "not reached");
    })]);
    sortable(at, view, kept, { titles: ["method", "round", "bytes", "seconds"], rows, caption: `first mean of ${kept.target} % or ${lower ? "less" : "more"}` });
  };
  protofed.component({ name: "curves", title: "Learning curves", there: (view) => view.score !== null && view.lines().length > 0, controls: [over, ...axes, { name: "target", label: "reach", number: [0, 100], value: best, after: " %" }], draw,
    note: "The band is one standard deviation over seeds. Point at the chart, or focus it and use the arrow keys, for values; click a name to hide its line, with Shift to see it alone." });
})();
