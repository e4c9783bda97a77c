// Features of test images and prototypes, by t-SNE.
protofed.component((() => {
  const { make, span, width, spots, legend, ofLine, absent, client } = protofed;
  const shape = (kind, x, y, fill) => {
    const mark = { class: "mark", fill, stroke: "var(--ink)", "stroke-width": 1 };
    if (kind === 0) return make("polygon", { points: `${x},${y - 6} ${x + 5.5},${y + 4} ${x - 5.5},${y + 4}`, ...mark });
    if (kind === 1) return make("rect", { x: x - 5, y: y - 5, width: 10, height: 10, ...mark });
    return make("polygon", { points: `${x},${y - 7} ${x + 7},${y} ${x},${y + 7} ${x - 7},${y}`, ...mark });
  };
  const draw = (at, view, kept) => {
    const look = (view.data.looks || {})[kept.line];
    if (!look) { absent(at, view); return; }
    const all = [...look.points, ...look.marks], wide = width(at), high = Math.round(0.75 * wide);
    const [left, right] = span(all.map((p) => p[0])), [top, bottom] = span(all.map((p) => p[1]));
    const place = ([x, y]) => [16 + ((x - left) / (right - left || 1)) * (wide - 32), 16 + ((y - top) / (bottom - top || 1)) * (high - 32)];
    const who = (n) => (n < 0 ? "the server" : client(look, n)), home = (n) => (n < 0 ? -1 : look.homes[n]);
    const key = (cls, n, domain) => ({ class: cls, client: n, domain })[kept.by];
    const paint = (n) => (n < 0 ? "var(--soft)" : view.colour(n));
    const called = (n) => ({ class: () => look.classes[n], client: () => who(n), domain: () => look.domains[n] ?? "mixed" })[kept.by]();
    const svg = make("svg", { width: wide, height: high, viewBox: `0 0 ${wide} ${high}`, "aria-hidden": "true" }), places = [];
    const put = (node, [x, y], words) => { places.push([x, y, () => words.split("\n")]); svg.append(node); };
    for (const point of look.points) {
      const [, , cls, answer, n, domain] = point, [x, y] = place(point), colour = paint(key(cls, n, domain));
      const words = `class ${look.classes[cls]}, answered ${answer < 0 ? "nothing" : look.classes[answer]}\n${who(n)}${look.domains.length > 1 ? `\n${look.domains[domain] ?? ""}` : ""}`;
      put(make("circle", { class: "point", cx: x, cy: y, r: 4, stroke: colour, "stroke-width": 1.5, fill: cls === answer ? colour : "var(--paper)" }), [x, y], words);
    }
    for (const mark of look.marks) {
      const [, , kind, cls, n] = mark, [x, y] = place(mark);
      put(shape(kind, x, y, paint(key(cls, n, home(n)))), [x, y], `${look.kinds[kind]} prototype of class ${look.classes[cls]}\n${who(n)}`);
    }
    at.append(spots(svg, "features and prototypes in the plane", () => places));
    const shown = [...new Set(look.points.map(([, , cls, , n, domain]) => key(cls, n, domain)))].sort((a, b) => a - b);
    at.append(legend([...shown.slice(0, 30).map((n) => [called(n), make("circle", { cx: 14, cy: 6, r: 5, fill: paint(n) })]), ...look.kinds.map((kind, n) => [kind, shape(n, 14, 6, "var(--soft)")])]));
    at.dataset.by = kept.by;
  };
  return { name: "plane", title: "Features and prototypes", controls: [ofLine, { name: "by", label: "colour by", options: () => ["class", "client", "domain"] }], draw,
    note: "t-SNE of the features of test images (dots; hollow: answered wrongly), of clients' class means (triangles) and of what the server sends (other marks). Point at a mark, or focus the figure and use the arrow keys, to see what it is." };
})());
