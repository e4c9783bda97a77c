// How many prototypes there are, how far they move, how much of a pool is padding.
protofed.component((() => {
  const { make, mean, chart, legend, dash } = protofed;
  const FIGURES = [["each", "prototypes a class"], ["mean", "prototypes that a client sends"], ["drift", "distance that class means move in a round"], ["padded", "share of a full grid that is padding"]];
  const having = (view) => view.lines().filter((name) => view.data.lines[name].some((run) => Object.keys(run.prototypes).length));
  const draw = (at, view, kept) => {
    const run = view.data.lines[kept.line].find((one) => Object.keys(one.prototypes).length), sets = Object.entries(run.prototypes);
    const grid = make("div", { class: "two" });
    at.append(grid);
    for (const [what, label] of FIGURES) {
      const series = sets.map(([name, one], n) => ({ name, n, points: (one[what] || []).map((value, k) => [run.rounds[k], Array.isArray(value) ? mean(value) : value]).filter((point) => point[1] !== null) })).filter((one) => one.points.length);
      if (!series.length) continue;
      const cell = make("div", {});
      grid.append(cell);
      chart(cell, view, series, { xlabel: "round", ylabel: label, height: 240 });
      cell.append(legend(series.map((one) => [one.name, make("line", { x1: 0, x2: 28, y1: 6, y2: 6, stroke: view.colour(one.n), "stroke-width": 3, "stroke-dasharray": dash(one.n) || null })])));
    }
  };
  return { name: "prototypes", title: "Prototypes over rounds", there: (view) => having(view).length > 0, controls: [{ name: "line", label: "of", options: having }], draw };
})());
