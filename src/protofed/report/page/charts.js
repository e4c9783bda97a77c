// Charts, heat maps, legends and tables that components share.
(() => {
  const { make, finite, mean, number, tell, hush, pointed, steps } = protofed;
  const DISTINCT = 10;  // colours that are easily told apart; dashes help with further lines
  const DASHES = ["", "6 3", "2 3", "8 3 2 3"];
  const dash = (n) => DASHES[Math.floor(n / DISTINCT) % DASHES.length];

  const span = (values) => { const found = finite(values); return found.length ? [found.reduce((a, b) => Math.min(a, b)), found.reduce((a, b) => Math.max(a, b))] : [0, 1]; };
  const ticks = (low, high, wanted) => {
    const raw = (high - low || 1) / wanted, base = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 5, 10].map((n) => n * base).find((n) => n >= raw);
    const found = [];
    for (let at = Math.ceil(low / step - 1e-9); at * step <= high + step * 1e-9; at++) found.push(+(at * step).toPrecision(12));
    return found;
  };
  const powers = (low, high) => {  // of ten, with 2 and 5 between them where there are few
    const decades = Math.log10(high) - Math.log10(low), stride = Math.max(1, Math.ceil(decades / 8)), found = [];
    for (let at = Math.floor(Math.log10(low)); at <= Math.log10(high) + 1; at += stride) found.push(...(decades < 2 ? [1, 2, 5] : [1]).map((part) => +(part * 10 ** at).toPrecision(12)));
    return found.filter((at) => at >= low * 0.999 && at <= high * 1.001);
  };

  // From numbers to pixels; equal ends are pulled apart, and a logarithmic scale leaves out what is not positive.
  const scale = (ends, from, to, log) => {
    const [low, high] = log ? ends.map(Math.log10) : ends;
    const size = Math.max(Math.abs(low), Math.abs(high)), same = high - low <= 1e-9 * size;  // but for rounding
    const apart = log ? 1 : size || 1, [a, b] = same ? [low - apart, high + apart] : [low, high];
    const at = (value) => from + (((log ? Math.log10(value) : value) - a) / (b - a)) * (to - from);
    at.ticks = (wanted) => (log ? powers(10 ** a, 10 ** b) : ticks(a, b, wanted));
    return at;
  };

  // As wide as the page allows, so that letters keep their size on a phone.
  const width = (at) => Math.max(260, Math.min(760, at.clientWidth || 640));

  // A frame with axes. Without `y` there is no scale upwards.
  const frame = ({ wide, height = 320, x, y, xlabel, ylabel, logx, logy }) => {
    const left = y ? 46 : 8, bottom = height - 40, right = wide - 14, top = ylabel ? 26 : 10;
    const across = scale(x, left, right, logx), up = y ? scale(y, bottom, top, logy) : () => 0;
    const svg = make("svg", { width: wide, height, viewBox: `0 0 ${wide} ${height}`, "aria-hidden": "true" });
    for (const at of y ? up.ticks(5) : []) {
      svg.append(make("line", { class: "grid", x1: left, x2: right, y1: up(at), y2: up(at) }));
      svg.append(make("text", { x: left - 6, y: up(at) + 4, "text-anchor": "end" }, number(at)));
    }
    for (const at of across.ticks(Math.max(2, Math.min(6, wide / 90)))) {
      svg.append(make("text", { x: across(at), y: bottom + 16, "text-anchor": "middle" }, number(at)));
    }
    svg.append(make("line", { class: "axis", x1: left, x2: right, y1: bottom, y2: bottom }));
    svg.append(make("text", { x: (left + right) / 2, y: height - 6, "text-anchor": "middle" }, xlabel));
    if (ylabel) svg.append(make("text", { x: 2, y: 13 }, ylabel));
    return { svg, across, up, left, right, top, bottom };
  };
  const path = (points) => points.map(([x, y], n) => `${n ? "L" : "M"}${x.toFixed(1)},${y.toFixed(1)}`).join("");

  // Series {name, n, points: [[x, y, spread]], seeds: [{name, points}]} as lines, with a crosshair that says every value.
  const chart = (at, view, series, { xlabel, ylabel, logx, logy, say = number, height, label }) => {
    const drawable = ([x, y]) => Number.isFinite(x) && Number.isFinite(y) && (!logx || x > 0) && (!logy || y > 0);
    const shown = series.map((one) => ({ ...one, points: one.points.filter(drawable), seeds: (one.seeds || []).map((seed) => ({ ...seed, points: seed.points.filter(drawable) })) })).filter((one) => one.points.length);
    if (!shown.length) { at.append(make("p", { class: "note" }, "Nothing to draw: click a name below to show its line.")); return; }
    const ends = ([, y, s]) => (s && !logy ? [y - s, y + s] : [y]);
    const every = shown.flatMap((one) => [...one.points, ...one.seeds.flatMap((seed) => seed.points)]);
    const wide = width(at);
    const { svg, across, up, left, right, top, bottom } = frame({
      wide, height, x: span(every.map(([x]) => x)), y: span(every.flatMap(ends)), xlabel, ylabel, logx, logy });
    for (const one of shown) {
      const colour = view.colour(one.n), there = one.points.map(([x, y, s]) => [across(x), y, s]);
      if (!logy && one.points.some((point) => point[2])) {
        const band = [...there.map(([x, y, s]) => [x, up(y - (s || 0))]), ...there.map(([x, y, s]) => [x, up(y + (s || 0))]).reverse()];
        svg.append(make("path", { class: "band", d: `${path(band)}Z`, fill: colour, opacity: 0.18 }));
      }
      for (const seed of one.seeds) svg.append(make("path", { class: "seed", d: path(seed.points.map(([x, y]) => [across(x), up(y)])), fill: "none", stroke: colour, "stroke-width": 1, opacity: 0.6 }));
      svg.append(make("path", { class: "curve", d: path(there.map(([x, y]) => [x, up(y)])), fill: "none", stroke: colour, "stroke-width": 2, "stroke-dasharray": dash(one.n) || null }));
      if (there.length < 2) svg.append(...there.map(([x, y]) => make("circle", { cx: x, cy: up(y), r: 3, fill: colour })));
    }
    const hair = make("g", { visibility: "hidden" });
    svg.append(hair);
    const places = [...new Set(shown.flatMap((one) => one.points.map(([x]) => x)))].sort((a, b) => a - b);
    const near = (x) => shown.flatMap((one) => {  // of each line the value at x, or at the place before it
      const before = one.points.filter(([place]) => place <= x);
      return before.length ? [{ ...one, point: before[before.length - 1] }] : [];
    }).sort((a, b) => b.point[1] - a.point[1]);
    const each = (one, x) => one.seeds.flatMap((seed) => { const at = seed.points.findLast((point) => point[0] <= x); return at ? [`${seed.name}: ${say(at[1])}`] : []; }).join(", ");
    const words = (n) => [`${xlabel} ${number(places[n])}`, ...near(places[n]).map((one) => `${one.name}: ${say(one.point[1])}${one.point[2] ? ` ± ${say(one.point[2])}` : ""}${one.seeds.length ? ` (${each(one, places[n])})` : ""}`)];
    const show = (n, x, y) => {
      const place = across(places[n]), box = svg.getBoundingClientRect(), zoom = box.width / wide || 1;
      hair.replaceChildren(make("line", { class: "hair", x1: place, x2: place, y1: top, y2: bottom }), ...near(places[n]).map((one) => make("circle", { cx: across(one.point[0]), cy: up(one.point[1]), r: 4, fill: view.colour(one.n), stroke: "var(--paper)" })));
      hair.setAttribute("visibility", "visible");
      tell(words(n), x === undefined ? box.left + place * zoom : x, y === undefined ? box.top + top * zoom : y);
    };
    const node = steps(svg, `${label || ylabel} over ${xlabel}`, () => places.length, (n) => words(n).join("; "), (n) => show(n));
    const leave = () => { hair.setAttribute("visibility", "hidden"); hush(); };
    pointed(svg, (event) => {
      const box = svg.getBoundingClientRect(), x = ((event.clientX - box.left) / box.width) * wide;
      if (x < left - 20 || x > right + 20) return;
      const nearest = places.reduce((best, place, n) => (Math.abs(across(place) - x) < Math.abs(across(places[best]) - x) ? n : best), 0);
      show(nearest, event.clientX, event.clientY);
    }, leave);
    node.addEventListener("blur", leave);
    at.append(node);
  };

  const key = (n, view) => make("svg", { width: 28, height: 12, viewBox: "0 0 28 12", "aria-hidden": "true" }, make("line", { x1: 0, x2: 28, y1: 6, y2: 6, stroke: view.colour(n), "stroke-width": 3, "stroke-dasharray": dash(n) || null }));
  const legend = (entries) => make("ul", { class: "legend" }, entries.map(([name, mark]) => make("li", {}, make("svg", { width: 28, height: 12, viewBox: "0 0 28 12", "aria-hidden": "true" }, mark), ` ${name}`)));
  // A click on a line's name hides it or shows it again, everywhere; with Shift the others are hidden.
  const switches = (names, view) => make("ul", { class: "legend" }, names.map((name) => {
    const button = make("button", { type: "button", "aria-pressed": String(!view.hidden.has(name)), title: "click: hide or show; Shift and click: only this one" }, key(view.place(name), view), ` ${view.called(name)}`);
    button.addEventListener("click", (event) => view.toggle(name, event.shiftKey));
    return make("li", {}, button);
  }));

  // Counts as colours from 0 on, with a scale, and as numbers where there is room for them. A table: it can be read aloud.
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const mix = (part) => {
    const [from, to] = dark.matches ? [[29, 33, 37], [86, 180, 233]] : [[255, 255, 255], [0, 96, 160]];
    return from.map((value, n) => Math.round(value + (to[n] - value) * part));
  };
  const linear = (value) => (value / 255 <= 0.04045 ? value / 255 / 12.92 : ((value / 255 + 0.055) / 1.055) ** 2.4);
  const paint = (cell, part) => {
    const [red, green, blue] = mix(part);
    cell.style.background = `rgb(${red}, ${green}, ${blue})`;
    cell.style.color = 0.2126 * linear(red) + 0.7152 * linear(green) + 0.0722 * linear(blue) > 0.179 ? "#000000" : "#ffffff";
    return cell;
  };
  const NUMBERED = 30;  // columns up to which numbers have room
  const heat = (at, { rows, columns, values, down, across, tip, say = (value) => String(value), most, caption }) => {
    const top = most || Math.max(1, span(values.flat())[1]), numbered = columns.length <= NUMBERED;
    const table = make("table", { class: numbered ? "heat" : "heat dense" }, make("caption", {}, caption),
      make("thead", {}, make("tr", {}, make("th", { scope: "col" }, `${down} \\ ${across}`), columns.map((name) => make("th", { scope: "col", "data-tip": `${across} ${name}` }, make("span", {}, String(name)))))),
      make("tbody", {}, values.map((row, y) => make("tr", {}, make("th", { scope: "row" }, String(rows[y])), row.map((value, x) => (value === null ? make("td", {}, numbered ? "–" : "")
        : paint(make("td", { class: "cell", "data-tip": tip(y, x, value) }, numbered ? say(value) : ""), Math.sqrt(Math.max(0, value) / top))))))));
    const scaled = make("p", { class: "scale", "aria-hidden": "true" }, "0 ", [0, 0.0625, 0.25, 0.5625, 1].map((part) => paint(make("span", {}, "\u00a0"), Math.sqrt(part))), ` ${say(top)}`);
    at.append(make("div", { class: "wide", tabindex: 0, role: "region", "aria-label": caption }, table), scaled);
  };

  // A table that a click on a title sorts; `part` tells several of one component apart; cells are texts, numbers (shown by their column) or elements.
  const sortable = (at, view, kept, { titles, rows, caption, left = 1, part = "" }) => {
    const place = `sort${part}`, order = kept[place], draw = () => view.redraw(kept.name);
    const plain = (cell) => (cell !== null && typeof cell === "object" && !(cell instanceof Node) ? cell.by : cell instanceof Node ? cell.textContent : cell);
    const sorted = order ? [...rows].sort((one, other) => {
      const [a, b] = [plain(one[order.column]), plain(other[order.column])];
      const empty = (value) => value === null || value === undefined || value === "";
      if (empty(a) || empty(b)) return Number(empty(a)) - Number(empty(b));
      const found = typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), undefined, { numeric: true });
      return order.down ? -found : found;
    }) : rows;
    const texts = titles.map((_, column) => column < left || rows.every((row) => { const value = plain(row[column]); return typeof value === "string" || value === null || value === undefined; }));
    const says = (column) => (texts[column] ? "says" : null);
    const head = titles.map((title, column) => {
      const mine = order && order.column === column, button = make("button", { type: "button", class: "sort", id: `${kept.name}${part}-by-${column}` }, title, mine ? (order.down ? " ▾" : " ▴") : "");
      button.addEventListener("click", () => {
        const down = typeof plain(rows.length ? rows[0][column] : "") === "number";
        kept[place] = mine ? (order.down === down ? { column, down: !down } : null) : { column, down };
        draw();
      });
      return make("th", { scope: "col", class: says(column), "aria-sort": mine ? (order.down ? "descending" : "ascending") : null }, button);
    });
    const body = sorted.map((row) => make("tr", {}, row.map((cell, column) => {
      const shown = cell instanceof Node ? cell : cell !== null && typeof cell === "object" ? cell.show : typeof cell === "number" ? number(cell) : cell === null || cell === undefined ? "–" : String(cell);
      return make(column === left - 1 ? "th" : "td", column === left - 1 ? { scope: "row" } : { class: says(column) }, shown);
    })));
    at.append(make("div", { class: "wide", tabindex: 0, role: "region", "aria-label": caption }, make("table", {}, make("caption", {}, caption), make("thead", {}, make("tr", {}, head)), make("tbody", {}, body))));
  };
  const by = (value, show) => ({ by: value, show });  // a cell that is sorted by one thing and shows another

  Object.assign(protofed, { dash, span, width, frame, path, chart, key, legend, switches, heat, sortable, by, dark, mean });
})();
