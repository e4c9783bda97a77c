"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const lines = Object.keys(data.lines);
  const DISTINCT = 10;  // colours that are easily told apart; dashes help with further lines
  const DASHES = ["", "6 3", "2 3", "8 3 2 3"];
  const colour = (n) => data.colours[n];
  const dash = (n) => DASHES[Math.floor(n / DISTINCT) % DASHES.length];
  const $ = (selector, at = document) => at.querySelector(selector);
  const make = (tag, attributes = {}, ...children) => {
    const svg = ["svg", "g", "path", "circle", "rect", "line", "text", "polygon", "polyline"].includes(tag);
    const node = svg ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
    node.append(...children.filter((child) => child !== null && child !== undefined).map((child) => (child instanceof Node ? child : String(child))));
    return node;
  };
  const finite = (values) => values.filter((value) => value !== null && Number.isFinite(value));
  const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;
  const deviation = (values) => {
    if (values.length < 2) return 0;
    const middle = mean(values);
    return Math.sqrt(values.reduce((sum, value) => sum + (value - middle) ** 2, 0) / (values.length - 1));
  };
  const number = (value) => (Math.abs(value) >= 1e9 ? `${+(value / 1e9).toPrecision(3)}G` : Math.abs(value) >= 1e6 ? `${+(value / 1e6).toPrecision(3)}M` : Math.abs(value) >= 1e4 ? `${+(value / 1e3).toPrecision(3)}k` : `${+value.toPrecision(3)}`);
  const ticks = (low, high, wanted = 5) => {
    const raw = (high - low || 1) / wanted, base = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 5, 10].map((n) => n * base).find((n) => n >= raw);
    const found = [];
    for (let at = Math.ceil(low / step - 1e-9); at * step <= high + step * 1e-9; at++) found.push(at * step);
    return found;
  };

  const tip = $("#tip");
  const explain = (node, text) => {
    node.append(make("title", {}, text));
    node.addEventListener("pointerenter", (event) => { tip.textContent = text; tip.hidden = false; move(event); });
    node.addEventListener("pointermove", move);
    node.addEventListener("pointerleave", () => { tip.hidden = true; });
    return node;
  };
  const move = (event) => {
    tip.style.left = `${Math.min(event.clientX + 12, window.innerWidth - tip.offsetWidth - 4)}px`;
    tip.style.top = `${Math.min(event.clientY + 12, window.innerHeight - tip.offsetHeight - 4)}px`;
  };
  const legend = (entries) => make("div", { class: "legend" }, ...entries.map(([name, mark]) => make("span", {}, make("svg", { viewBox: "0 0 28 12" }, mark), " ", name)));
  const stroke = (n) => make("line", { x1: 0, x2: 28, y1: 6, y2: 6, stroke: colour(n), "stroke-width": 3, "stroke-dasharray": dash(n) });

  // A frame with axes; `draw` is given the two scales. Without `y` there is no scale upwards.
  const frame = (x, y, xlabel, ylabel, draw, height = 320) => {
    const width = 640, left = 52, bottom = height - 38, right = width - 12, top = 12;
    const [x0, x1] = x[0] === x[1] ? [x[0] - 1, x[1] + 1] : x, [y0, y1] = y === null ? [0, 1] : y[0] === y[1] ? [y[0] - 1, y[1] + 1] : y;
    const across = (value) => left + ((value - x0) / (x1 - x0)) * (right - left);
    const up = (value) => bottom - ((value - y0) / (y1 - y0)) * (bottom - top);
    const svg = make("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${ylabel} over ${xlabel}` });
    for (const at of y === null ? [] : ticks(y0, y1)) svg.append(make("line", { class: "grid", x1: left, x2: right, y1: up(at), y2: up(at) }), make("text", { x: left - 6, y: up(at) + 4, "text-anchor": "end" }, number(at)));
    for (const at of ticks(x0, x1)) svg.append(make("text", { x: across(at), y: bottom + 16, "text-anchor": "middle" }, number(at)));
    svg.append(make("line", { class: "axis", x1: left, x2: right, y1: bottom, y2: bottom }), make("text", { x: (left + right) / 2, y: height - 4, "text-anchor": "middle" }, xlabel));
    svg.append(make("text", { x: 12, y: (top + bottom) / 2, "text-anchor": "middle", transform: `rotate(-90 12 ${(top + bottom) / 2})` }, ylabel));
    draw(svg, across, up);
    return svg;
  };
  const span = (values) => { const found = finite(values); return found.length ? [Math.min(...found), Math.max(...found)] : [0, 1]; };
  const path = (points) => points.map(([x, y], n) => `${n ? "L" : "M"}${x.toFixed(1)},${y.toFixed(1)}`).join("");
  const chart = (series, xlabel, ylabel) => frame(
    span(series.flatMap((one) => one.points.map((point) => point[0]))),
    span(series.flatMap((one) => one.points.flatMap((point) => [point[1] - (point[2] || 0), point[1] + (point[2] || 0)]))),
    xlabel, ylabel, (svg, across, up) => {
      for (const one of series) {
        const there = one.points.map(([x, y, s]) => [across(x), up(y), up(y - (s || 0)), up(y + (s || 0))]);
        if (one.points.some((point) => point[2])) svg.append(make("path", { d: `${path(there.map((p) => [p[0], p[2]]))}L${path(there.map((p) => [p[0], p[3]]).reverse()).slice(1)}Z`, fill: colour(one.n), opacity: 0.18 }));
        svg.append(explain(make("path", { class: "curve", d: path(there), fill: "none", stroke: colour(one.n), "stroke-width": 2, "stroke-dasharray": dash(one.n) }), one.name));
        for (const [x, y] of there.length < 2 ? there : []) svg.append(make("circle", { cx: x, cy: y, r: 3, fill: colour(one.n) }));
      }
    });
  const fill = (table, head, rows) => {
    table.replaceChildren(make("thead", {}, make("tr", {}, ...head.map((word) => make("th", { scope: "col" }, word)))), make("tbody", {}, ...rows));
  };
  const put = (selector, ...nodes) => { $(`${selector} figure`).replaceChildren(...nodes); $(selector).dataset.drawn = "yes"; };

  let score = $("#score").value;

  const table = () => {
    const more = [...new Set(data.summary.flatMap((row) => Object.keys(row.further)))];
    const rows = data.summary.map((row) => {
      const cell = row.cells[score];
      if (!cell) return make("tr", {}, make("td", {}, row.label), make("td", { colspan: 6 + more.length }, row.seeds ? "has no such accuracy" : row.failed[0]));
      const value = `${cell.mean.toFixed(2)}${cell.std === null ? "" : ` ± ${cell.std.toFixed(2)}`}${cell.diagnostic ? " *" : ""}`;
      return make("tr", {}, make("td", {}, row.label), make("td", {}, cell.best ? make("b", {}, value) : value), make("td", {}, cell.worst.toFixed(1)), make("td", {}, cell.spread.toFixed(1)),
        ...more.map((name) => make("td", {}, name in row.further ? number(row.further[name]) : "–")), make("td", {}, number(row.megabytes)), make("td", {}, number(row.seconds)), make("td", { class: "says" }, [cell.best ? "best" : cell.diagnostic ? "diagnostic, not ranked" : cell.says, row.failed.length ? `${row.failed.length} of ${row.runs} runs: ${row.failed[0]}` : ""].filter(Boolean).join("; ")));
    });
    fill($("#table"), ["", score, "worst client", "spread", ...more, "MB", "seconds", data.summary.some((row) => row.setting) ? "against the best of its setting" : "against the best"], rows);
    $("#summary").dataset.drawn = "yes";
  };

  // Seeds of a line by tested round: mean and spread, at the mean of rounds, bytes or seconds.
  const curve = (label, over) => {
    const drawn = data.lines[label].filter((run) => run.curves[score]), ended = drawn.filter((run) => run.complete);
    const runs = ended.length ? ended : drawn;  // runs that failed or were cut off are in no mean
    const found = new Map();
    for (const run of runs) run.tested.forEach((round, n) => {
      const at = run.rounds.indexOf(round), x = over === "rounds" ? round : run[over][at], y = run.curves[score][n];
      if (y !== null) { if (!found.has(round)) found.set(round, []); found.get(round).push([x, y]); }
    });
    return [...found.entries()].sort((a, b) => a[0] - b[0]).map(([, seen]) => [mean(seen.map((p) => p[0])), mean(seen.map((p) => p[1])), deviation(seen.map((p) => p[1]))]);
  };
  const curves = () => {
    const over = $("#over").value;
    const series = lines.map((name, n) => ({ name, n, points: curve(name, over) })).filter((one) => one.points.length);
    const words = { rounds: "round", bytes: "bytes", seconds: "seconds" };
    put("#curves", chart(series, words[over], `${score}, %`), legend(series.map((one) => [one.name, stroke(one.n)])));
    const target = Number($("#target").value);
    const lower = data.lower.includes(score);
    const rows = lines.map((name) => {
      const at = Object.keys(words).map((axis) => { const first = curve(name, axis).find((point) => lower ? point[1] <= target : point[1] >= target); return make("td", {}, first ? number(first[0]) : "not reached"); });
      return make("tr", {}, make("td", {}, name), ...at);
    });
    fill($("#reached"), [`first mean of ${target} % or ${lower ? "less" : "more"}`, "round", "bytes", "seconds"], rows);
  };

  const heat = (matrix, rows, columns, xlabel, ylabel, say) => {
    const most = Math.max(1, ...matrix.flat()), height = Math.max(4, Math.min(24, 600 / matrix.length)), wide = 540 / columns.length;
    const svg = make("svg", { viewBox: `0 0 640 ${height * matrix.length + 60}`, role: "img", "aria-label": `${ylabel} by ${xlabel}` });
    matrix.forEach((row, y) => {
      if (height > 9 || y % Math.ceil(12 / height) === 0) svg.append(make("text", { x: 84, y: y * height + height / 2 + 4, "text-anchor": "end" }, String(rows[y]).slice(0, 11)));
      row.forEach((value, x) => svg.append(explain(make("rect", { class: "cell", x: 90 + x * wide, y: y * height, width: wide, height, fill: "#0072B2", "fill-opacity": Math.sqrt(value / most), stroke: "var(--line)", "stroke-width": 0.3 }), say(y, x, value))));
      if (wide >= 24 && height >= 14) row.forEach((value, x) => svg.append(make("text", { class: value > most / 3 ? "number dark" : "number", x: 90 + (x + 0.5) * wide, y: y * height + height / 2 + 4, "text-anchor": "middle" }, value)));
    });
    [0, 0.25, 0.5, 0.75, 1].forEach((part, n) => svg.append(make("rect", { class: "scale", x: 530 + n * 14, y: height * matrix.length + 30, width: 14, height: 10, fill: "#0072B2", "fill-opacity": Math.sqrt(part), stroke: "var(--line)", "stroke-width": 0.3 })));
    svg.append(make("text", { x: 524, y: height * matrix.length + 39, "text-anchor": "end" }, 0), make("text", { x: 606, y: height * matrix.length + 39 }, number(most)));
    columns.forEach((name, x) => { if (wide > 14 || x % Math.ceil(14 / wide) === 0) svg.append(make("text", { x: 90 + (x + 0.5) * wide, y: height * matrix.length + 16, "text-anchor": "middle" }, String(name).slice(0, Math.max(2, wide / 7)))); });
    svg.append(make("text", { x: 360, y: height * matrix.length + 40, "text-anchor": "middle" }, xlabel), make("text", { x: 12, y: (height * matrix.length) / 2, "text-anchor": "middle", transform: `rotate(-90 12 ${(height * matrix.length) / 2})` }, ylabel));
    return svg;
  };
  const looks = lines.filter((name) => data.looks[name]);
  const absent = (selector) => { const section = $(selector); $("figure, .figures", section).replaceChildren(make("p", { class: "note" }, "Not known: a run writes this when it is complete and holds its clients' data.")); };
  const holds = () => {
    if (!looks.length) return absent("#holds");
    const seen = data.looks[looks[0]];
    put("#holds", heat(seen.holds, seen.holds.map((_, n) => n), seen.classes, "class", "client", (y, x, value) => `client ${y}, class ${seen.classes[x]}: ${value}`));
  };

  const clients = () => {
    const found = lines.flatMap((name, n) => { const run = data.lines[name].find((one) => one.clients[score]); return run ? [{ name, n, values: run.clients[score], lack: run.undefined[score] || [], domains: run.domains[score] || {} }] : []; });
    if (!found.length) return;
    const row = 34, svg = frame(span(found.flatMap((one) => [...one.values, ...Object.values(one.domains)])), null, `${score} of a client, %`, "", (into, across) => {
      found.forEach((one, n) => {
        const y = 14 + row * (n + 0.5);
        const who = [...Array(one.values.length + one.lack.length).keys()].filter((client) => !one.lack.includes(client));
        one.values.forEach((value, at) => { const client = who[at]; into.append(explain(make("circle", { class: "dot", cx: across(value), cy: y + (((client * 7) % 11) - 5), r: 4, fill: colour(one.n), "fill-opacity": 0.6 }), `${one.name}, client ${client}: ${value.toFixed(1)} %`)); });
        into.append(make("line", { x1: across(mean(one.values)), x2: across(mean(one.values)), y1: y - 13, y2: y + 13, stroke: "var(--ink)", "stroke-width": 2 }));
        for (const [domain, value] of Object.entries(one.domains)) into.append(explain(make("rect", { class: "domain", x: across(value) - 4, y: y - 4, width: 8, height: 8, fill: "none", stroke: colour(one.n), "stroke-width": 2 }), `${one.name}, domain ${domain}: ${value.toFixed(1)} %`));
      });
    }, 52 + row * found.length);
    put("#clients", svg, legend(found.map((one) => [one.name, stroke(one.n)])));
    const rows = lines.flatMap((name) => data.lines[name].slice(0, 1).flatMap((run) => Object.entries(run.domains).map(([what, each]) => make("tr", {}, make("td", {}, `${name}: ${what}`), ...Object.entries(each).map(([domain, value]) => make("td", {}, `${domain} ${value.toFixed(1)}`))))));
    if (rows.length) fill($("#domains"), ["accuracy by domain"], rows);
  };

  const chosen = (selector) => $(`${selector} select.line`).value;
  const confusion = () => {
    if (!looks.length) return absent("#confusion");
    const seen = data.looks[chosen("#confusion")];
    $("#confusion .what").textContent = `${seen.model} model, ${seen.rule}; first seed`;
    put("#confusion", heat(seen.confusion, seen.classes, seen.classes, "answer", "class", (y, x, value) => `${seen.classes[y]} answered as ${seen.classes[x]}: ${value}`));
  };

  let by = "class";
  const shape = (kind, x, y, fill) => {
    const mark = { fill, stroke: "var(--ink)", "stroke-width": 1 };
    if (kind === 0) return make("polygon", { class: "mark", points: `${x},${y - 6} ${x + 5.5},${y + 4} ${x - 5.5},${y + 4}`, ...mark });
    if (kind === 1) return make("rect", { class: "mark", x: x - 5, y: y - 5, width: 10, height: 10, ...mark });
    return make("polygon", { class: "mark", points: `${x},${y - 7} ${x + 7},${y} ${x},${y + 7} ${x - 7},${y}`, ...mark });
  };
  const plane = () => {
    if (!looks.length) return absent("#plane");
    const seen = data.looks[chosen("#plane")], all = [...seen.points, ...seen.marks];
    const place = (x, y) => [20 + ((x - left) / (right - left || 1)) * 600, 20 + ((y - top) / (bottom - top || 1)) * 440];
    const [left, right] = span(all.map((p) => p[0])), [top, bottom] = span(all.map((p) => p[1]));
    const who = (client) => (client < 0 ? "the server" : `client ${client}`);
    const home = (client) => (client < 0 ? -1 : seen.homes[client]);
    const key = (cls, client, domain) => ({ class: cls, client, domain })[by];
    const name = (n) => (n < 0 ? "none" : by === "class" ? seen.classes[n] : by === "domain" ? seen.domains[n] : `client ${n}`);
    const paint = (n) => (n < 0 ? "var(--soft)" : colour(n));
    const svg = make("svg", { viewBox: "0 0 640 480", role: "img", "aria-label": `features coloured by ${by}` });
    for (const [x, y, cls, answer, client, domain] of seen.points) {
      const [cx, cy] = place(x, y), ink = paint(key(cls, client, domain));
      svg.append(explain(make("circle", { class: "point", cx, cy, r: 3.5, fill: cls === answer ? ink : "none", stroke: ink, "fill-opacity": 0.7 }), `class ${seen.classes[cls]}, answered ${seen.classes[answer]}; ${who(client)}; ${seen.domains[domain]}`));
    }
    for (const [x, y, kind, cls, client] of seen.marks) svg.append(explain(shape(kind, ...place(x, y), paint(key(cls, client, home(client)))), `${seen.kinds[kind]} prototype of class ${seen.classes[cls]}; ${who(client)}`));
    const shown = [...new Set(seen.points.map(([, , cls, , client, domain]) => key(cls, client, domain)))].sort((a, b) => a - b);
    const marks = seen.kinds.map((kind, n) => [kind, shape(n, 14, 6, "var(--soft)")]);
    put("#plane", svg, legend([...shown.slice(0, 30).map((n) => [name(n), make("circle", { cx: 14, cy: 6, r: 5, fill: paint(n) })]), ...marks]));
    $("#plane").dataset.by = by;
  };

  const prototypes = () => {
    const name = chosen("#prototypes"), run = (data.lines[name] || []).find((one) => Object.keys(one.prototypes).length);
    const into = $("#prototypes .figures");
    if (!run) { into.replaceChildren(make("p", { class: "note" }, "No prototypes were sent.")); return; }
    const sets = Object.entries(run.prototypes);
    const series = (what) => sets.filter(([, one]) => one[what]).map(([set, one], n) => ({ name: set, n, points: one[what].map((value, at) => [run.rounds[at], Array.isArray(value) ? mean(value) : value]).filter((point) => point[1] !== null) })).filter((one) => one.points.length);
    const figures = [["each", "prototypes a class"], ["mean", "prototypes that a client sends"], ["drift", "distance that class means move in a round"], ["padded", "share of a full grid that is padding"]];
    into.replaceChildren(...figures.flatMap(([what, label]) => { const found = series(what); return found.length ? [make("figure", {}, chart(found, "round", label), legend(found.map((one) => [one.name, stroke(one.n)])))] : []; }));
    $("#prototypes").dataset.drawn = "yes";
  };

  const costs = () => {
    const parts = lines.map((name) => { const run = data.lines[name][0]; return { name, weights: 4 * run.scalars.weights, prototypes: 4 * run.scalars.prototypes, rest: Math.max(0, run.up - 4 * (run.scalars.weights + run.scalars.prototypes)), down: run.down }; });
    const most = Math.max(1, ...parts.map((one) => one.weights + one.prototypes + one.rest + one.down)), row = 30;
    const kinds = [["weights", "weights up", 0], ["prototypes", "prototypes up", 1], ["rest", "headers, counts and the like up", 6], ["down", "down", 5]];
    const svg = make("svg", { viewBox: `0 0 640 ${row * parts.length + 8}`, role: "img", "aria-label": "bytes by part" });
    parts.forEach((one, n) => {
      let x = 150;
      svg.append(make("text", { x: 144, y: n * row + 20, "text-anchor": "end" }, one.name.slice(0, 20)));
      for (const [what, label, tint] of kinds) { const width = (one[what] / most) * 470; if (one[what]) svg.append(explain(make("rect", { class: "bar", x, y: n * row + 5, width: Math.max(width, 0.5), height: 20, fill: colour(tint) }), `${one.name}: ${label}, ${number(one[what])} bytes`)); x += width; }
    });
    put("#costs", svg, legend(kinds.map(([, label, tint]) => [label, make("rect", { width: 28, height: 12, fill: colour(tint) })])));
    const profiled = lines.filter((name) => data.lines[name][0].profile);
    const sections = [...new Set(profiled.flatMap((name) => Object.keys(data.lines[name][0].profile.sections || {})))];
    if (sections.length) fill($("#time"), ["share of a round's time", ...sections], profiled.map((name) => make("tr", {}, make("td", {}, name), ...sections.map((part) => make("td", {}, `${(100 * ((data.lines[name][0].profile.sections[part] || {}).share || 0)).toFixed(0)} %`)))));
    else fill($("#time"), ["", "seconds a round"], lines.map((name) => { const run = data.lines[name][0]; return make("tr", {}, make("td", {}, name), make("td", {}, number(run.seconds[run.seconds.length - 1] / run.rounds.length))); }));
  };

  const all = () => { table(); curves(); clients(); };
  for (const select of document.querySelectorAll("select.line")) select.append(...(select.closest("#prototypes") ? lines.filter((name) => data.lines[name].some((run) => Object.keys(run.prototypes).length)) : looks).map((name) => make("option", {}, name)));
  $("#score").addEventListener("change", (event) => { score = event.target.value; all(); });
  $("#over").addEventListener("change", curves);
  $("#target").addEventListener("input", curves);
  $("#confusion select").addEventListener("change", confusion);
  $("#plane select").addEventListener("change", plane);
  $("#prototypes select").addEventListener("change", prototypes);
  for (const button of document.querySelectorAll("#plane button")) button.addEventListener("click", () => {
    by = button.dataset.by;
    for (const other of document.querySelectorAll("#plane button")) other.setAttribute("aria-pressed", String(other === button));
    plane();
  });
  const bests = data.summary.map((row) => row.cells[score]).filter(Boolean).map((cell) => cell.mean);
  $("#target").value = bests.length ? Math.floor(Math.max(...bests) * 0.9) : 50;
  all(); holds(); confusion(); plane(); prototypes(); costs();
})();
