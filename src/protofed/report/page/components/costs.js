// What was sent, by part, and where the time went.
protofed.component((() => {
  const { make, number, width, legend, switches, sortable, by } = protofed;
  const KINDS = [["weights", "weights up", 0], ["prototypes", "prototypes up", 1], ["rest", "headers, counts and the like up", 6], ["down", "down", 5]];
  const draw = (at, view, kept) => {
    const parts = view.shown().map((name) => {
      const run = view.data.lines[name][0], weights = 4 * run.scalars.weights, prototypes = 4 * run.scalars.prototypes;
      return { name, weights, prototypes, rest: Math.max(0, run.up - weights - prototypes), down: run.down };
    });
    const total = (one) => one.weights + one.prototypes + one.rest + one.down, most = Math.max(1, ...parts.map(total)), row = 44, wide = width(at);
    const svg = make("svg", { width: wide, height: row * parts.length + 8, viewBox: `0 0 ${wide} ${row * parts.length + 8}`, role: "img", "aria-label": "bytes by part; the table below has the numbers" });
    parts.forEach((one, n) => {
      let x = 4;
      svg.append(make("text", { x: 4, y: n * row + 14 }, one.name));
      for (const [what, label, tint] of KINDS) {
        const part = (one[what] / most) * (wide - 8);
        if (one[what]) svg.append(make("rect", { class: "bar", x, y: n * row + 20, width: Math.max(part, 0.5), height: 18, fill: view.colour(tint), "data-tip": `${one.name}\n${label}: ${number(one[what])} bytes` }));
        x += part;
      }
    });
    at.append(svg, legend(KINDS.map(([, label, tint]) => [label, make("rect", { width: 28, height: 12, fill: view.colour(tint) })])), switches(view.lines(), view));
    const first = (name) => view.data.lines[name][0], sections = [...new Set(view.shown().flatMap((name) => Object.keys((first(name).profile || {}).sections || {})))];
    sortable(at, view, kept, {
      titles: ["method", ...KINDS.map(([, label]) => `${label}, bytes`), "seconds a round", ...sections.map((name) => `${name}, % of a round`)],
      rows: parts.map((one) => [one.name, ...KINDS.map(([what]) => one[what]), by(first(one.name).seconds.at(-1) / first(one.name).rounds.length, number(first(one.name).seconds.at(-1) / first(one.name).rounds.length)),
        ...sections.map((name) => { const part = ((first(one.name).profile || {}).sections || {})[name]; return part ? 100 * part.share : null; })]),
      caption: "of the first seed, over all rounds",
    });
  };
  return { name: "costs", title: "Traffic and time", draw };
})());
