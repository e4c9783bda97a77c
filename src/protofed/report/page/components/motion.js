// The rounds that runs have kept: two planes side by side, and below them a curve with a cursor.
protofed.component((() => {
  const { make, legend: keys, spots, switches } = protofed;
  const SIDE = 400, GRID = 1000, STEP = 350, TRAIL = 8;  // units of a plane and of its grid; milliseconds and rounds
  const SHAPES = ["M0,-6L5.5,4L-5.5,4Z", "M-5,-5L5,-5L5,5L-5,5Z", "M0,-7L7,0L0,7L-7,0Z"];
  const still = window.matchMedia("(prefers-reduced-motion: reduce)").matches;
  const scaled = (value) => (value / GRID) * SIDE;
  const between = (from, to, part) => from + (to - from) * part;
  const ascending = (values) => [...new Set(values)].sort((a, b) => a - b);

  const labels = (view) => Object.keys(view.data.motion.runs).filter((name) => view.place(name) >= 0);
  const names = (view) => labels(view).filter((name) => !view.hidden.has(name));
  const samplesOf = (view, name) => view.data.motion.samples[view.data.motion.runs[name].samples];
  const clientsOf = (sample) => ascending(sample.points.map((point) => point[1]));
  const controls = [
    { name: "left", label: "left", options: names },
    { name: "right", label: "right", options: (view) => [["", "none"], ...names(view).map((name) => [name, name])], value: (view) => names(view)[1] || "" },
    { name: "by", label: "colour by", options: () => ["class", "client", "domain"] },
    { name: "class", label: "class", options: (view, kept) => [["", "all"], ...(kept.left ? samplesOf(view, kept.left).classes.map((name, n) => [n, name]) : [])] },
    { name: "client", label: "client", options: (view, kept) => [["", "all"], ...(kept.left ? clientsOf(samplesOf(view, kept.left)).map((n) => [n, `client ${n}`]) : [])] },
    { name: "trails", label: "trails", options: () => [["server", "of the server's prototypes"], ["clients", "of clients' class means"], ["", "none"]] },
  ];

  // What a run is at a time between two of its rounds: the place of the earlier one, and the part of the way on.
  const moment = (run, round) => {
    let at = 0;
    while (at + 1 < run.rounds.length && run.rounds[at + 1] <= round) at++;
    const next = Math.min(at + 1, run.rounds.length - 1);
    const part = next === at || round < run.rounds[at] ? 0 : (round - run.rounds[at]) / (run.rounds[next] - run.rounds[at]);
    return { at, next, part: still ? 0 : part };
  };
  const thumbnail = ({ pictures, points }, n) => {
    const { png, across, width: wide, height } = pictures, zoom = Math.max(1, Math.round(84 / wide));
    return make("svg", { class: "thumbnail", viewBox: `${(n % across) * wide} ${Math.floor(n / across) * height} ${wide} ${height}`, width: wide * zoom, height: height * zoom },
      make("image", { href: `data:image/png;base64,${png}`, width: across * wide, height: Math.ceil(points.length / across) * height }));
  };

  // What colours and the choices of a class and a client make of a sample or a mark.
  const looks = (view, kept) => {
    const clients = ascending(view.data.motion.samples.flatMap((sample) => sample.points.map((point) => point[1])));
    return {
      paint: (cls, client, domain) => { const n = { class: cls, client: clients.indexOf(client), domain }[kept.by]; return n < 0 ? "var(--soft)" : view.colour(n); },
      dimmed: (cls, client) => (kept.class !== "" && kept.class !== cls) || (kept.client !== "" && client >= 0 && kept.client !== client),
    };
  };

  const panel = (label, view, kept) => {
    const run = view.data.motion.runs[label], sample = samplesOf(view, label), { paint, dimmed } = looks(view, kept);
    const svg = make("svg", { viewBox: `0 0 ${SIDE} ${SIDE}`, "aria-hidden": "true" });
    const lines = make("g", { class: "trails" }), dots = make("g", {}), marks = make("g", {}), count = make("span", { class: "count" });
    svg.append(lines, dots, marks);
    const points = sample.points.map(() => make("circle", { class: "sample", r: 4 }));
    dots.append(...points);
    const frames = run.marks.map((frame) => new Map(frame.map((mark) => [mark.slice(0, 4).join(), mark])));
    const shapes = new Map();
    for (const frame of frames) for (const [key, [kind, cls, client]] of frame) if (!shapes.has(key)) {
      const shape = make("path", { class: "prototype", d: SHAPES[Math.min(kind, SHAPES.length - 1)] }), trail = make("polyline", { fill: "none" });
      marks.append(shape);
      lines.append(trail);
      shapes.set(key, { shape, trail, kind, cls, client });
    }
    const ofSample = (n, answer) => {
      const [cls, client, domain] = sample.points[n];
      const text = `${sample.classes[cls]}, answered ${answer < 0 ? "nothing" : sample.classes[answer]}; client ${client}${sample.domains.length > 1 ? `; ${sample.domains[domain]}` : ""}`;
      return [...(sample.pictures ? [thumbnail(sample, n)] : []), ...(sample.rows[n] ? [sample.rows[n]] : []), text];
    };
    const ofMark = ({ kind, cls, client }) => [kind === 0 ? `class mean of client ${client}: ${sample.classes[cls]}` : `${run.kinds[kind]} prototype of ${sample.classes[cls]}${client < 0 ? "" : `, client ${client}`}`];
    const trailed = kept.trails && (kept.trails === "server" && run.kinds.length > 1 ? "server" : "clients");
    let places = [];
    const draw = (round) => {
      const { at, next, part } = moment(run, round), here = run.places[at], there = run.places[next], answers = run.answers[at];
      places = [];
      let known = 0;
      points.forEach((dot, n) => {
        const [cls, client, domain] = sample.points[n], tint = paint(cls, client, domain), right = answers[n] === cls, faint = dimmed(cls, client);
        const x = scaled(between(here[2 * n], there[2 * n], part)), y = scaled(GRID - between(here[2 * n + 1], there[2 * n + 1], part));
        known += right;
        dot.setAttribute("cx", x.toFixed(1));
        dot.setAttribute("cy", y.toFixed(1));
        dot.setAttribute("fill", right ? tint : "transparent");
        dot.setAttribute("stroke", tint);
        dot.setAttribute("opacity", faint ? 0.08 : 1);
        if (!faint) places.push([x, y, () => ofSample(n, answers[n])]);
      });
      for (const [key, { shape, trail, kind, cls, client }] of shapes) {
        const from = frames[at].get(key), to = frames[next].get(key) || from, faint = dimmed(cls, client);
        const drawn = from && trailed === (kind ? "server" : "clients") && !faint;
        shape.setAttribute("visibility", from ? "visible" : "hidden");
        trail.setAttribute("visibility", drawn ? "visible" : "hidden");
        if (!from) continue;
        const tint = paint(cls, client, -1), x = scaled(between(from[4], to[4], part)), y = scaled(GRID - between(from[5], to[5], part));
        shape.setAttribute("transform", `translate(${x.toFixed(1)},${y.toFixed(1)})`);
        shape.setAttribute("fill", tint);
        shape.setAttribute("opacity", faint ? 0.08 : 1);
        if (!faint) places.push([x, y, () => ofMark({ kind, cls, client })]);
        if (!drawn) continue;
        const been = frames.slice(Math.max(0, at - TRAIL), at + 1).flatMap((frame) => (frame.has(key) ? [frame.get(key)] : [])).map((mark) => [scaled(mark[4]), scaled(GRID - mark[5])]);
        trail.setAttribute("points", [...been, [x, y]].map((one) => one.map((value) => value.toFixed(1)).join()).join(" "));
        trail.setAttribute("stroke", tint);
      }
      count.textContent = `round ${run.rounds[at]}: ${known} of ${points.length} right (${run.model} model, ${run.rule})`;
    };
    const figure = make("figure", {}, make("figcaption", {}, make("b", {}, label), " ", count), spots(svg, `samples and prototypes of ${label}`, () => places));
    return { label, run, sample, figure, draw };
  };

  // The accuracies over rounds; `seek` is called with the round that is pointed at.
  const course = (at, view, panels, seek) => {
    const wide = Math.max(260, at.clientWidth || 640), high = 170, left = 44, right = wide - 12, above = 12, below = high - 34;
    const last = Math.max(...panels.flatMap(({ run }) => [...run.rounds, ...run.curve.map((point) => point[0])]));
    const values = panels.flatMap(({ run }) => run.curve.map((point) => point[1]));
    const low = values.length ? Math.floor(Math.min(...values) / 10) * 10 : 0, top = values.length ? Math.max(low + 10, Math.ceil(Math.max(...values) / 10) * 10) : 100;
    const x = (round) => left + ((round - 1) / Math.max(1, last - 1)) * (right - left);
    const y = (value) => below - ((value - low) / (top - low)) * (below - above);
    const svg = make("svg", { viewBox: `0 0 ${wide} ${high}`, role: "img", "aria-label": "accuracy over rounds" });
    for (const value of [low, (low + top) / 2, top]) svg.append(make("line", { class: "grid", x1: left, x2: right, y1: y(value), y2: y(value) }), make("text", { x: left - 6, y: y(value) + 4, "text-anchor": "end" }, `${value}`));
    const shown = wide < 500 ? [1, last] : [1, Math.round(last / 4), Math.round(last / 2), Math.round((3 * last) / 4), last];
    for (const round of new Set(shown.filter((one) => one >= 1))) svg.append(make("text", { x: x(round), y: below + 15, "text-anchor": "middle" }, `${round}`));
    svg.append(make("text", { x: (left + right) / 2, y: high - 3, "text-anchor": "middle" }, `round; ${[...new Set(panels.map(({ run }) => run.score))].join(", ")} in %`));
    for (const { label, run } of panels) if (run.curve.length) svg.append(make("polyline", { class: "score", fill: "none", stroke: view.colour(view.place(label)), "stroke-width": 2, points: run.curve.map(([round, value]) => `${x(round).toFixed(1)},${y(value).toFixed(1)}`).join(" ") }));
    const cursor = make("line", { class: "cursor", y1: above, y2: below }), beads = panels.map(({ label }) => make("circle", { class: "bead", r: 4, fill: view.colour(view.place(label)) }));
    svg.append(cursor, ...beads);
    const meant = (event) => {
      const box = svg.getBoundingClientRect();
      seek(1 + ((((event.clientX - box.left) * wide) / box.width - left) / (right - left)) * Math.max(1, last - 1));
    };
    svg.addEventListener("pointerdown", meant);
    svg.addEventListener("pointermove", (event) => { if (event.buttons) meant(event); });
    at.append(svg, switches(labels(view), view));
    return (round) => {
      cursor.setAttribute("x1", x(round)); cursor.setAttribute("x2", x(round));
      panels.forEach(({ run }, n) => {
        const before = run.curve.filter((point) => point[0] <= round).at(-1);
        beads[n].setAttribute("visibility", before ? "visible" : "hidden");
        if (before) { beads[n].setAttribute("cx", x(before[0])); beads[n].setAttribute("cy", y(before[1])); }
      });
    };
  };

  const legend = (view, kept, panels) => {
    const { paint } = looks(view, kept), samples = [...new Set(panels.map(({ sample }) => sample))], column = { class: 0, client: 1, domain: 2 }[kept.by];
    const found = ascending(samples.flatMap((sample) => sample.points.map((point) => point[column]))).slice(0, 30);
    const word = (n) => (kept.by === "class" ? samples[0].classes[n] : kept.by === "domain" ? samples[0].domains[n] : `client ${n}`);
    const kinds = [...new Set(panels.flatMap(({ run }) => run.kinds.map((kind, n) => `${Math.min(n, 2)}:${kind}`)))];
    const dot = (fill, stroke) => make("circle", { cx: 14, cy: 6, r: 4.5, fill, stroke });
    return keys([...found.map((n) => [word(n), dot(paint(n, n, n), "none")]), ["right", dot("var(--soft)", "none")], ["wrong", dot("none", "var(--soft)")],
      ...kinds.map((kind) => [kind.slice(2) === "local" ? "class mean of a client" : `${kind.slice(2)} prototype`, make("path", { class: "prototype", d: SHAPES[kind[0]], transform: "translate(14,6)", fill: "var(--soft)" })])]);
  };

  const draw = (place, view, kept) => {
    const chosen = [...new Set([kept.left, kept.right].filter(Boolean))];
    if (!chosen.length) { place.append(make("p", { class: "note" }, "Nothing to draw: click a name below to show its line."), switches(labels(view), view)); return; }
    const panels = chosen.map((label) => panel(label, view, kept)), rounds = ascending(panels.flatMap(({ run }) => run.rounds)), end = rounds.length - 1;
    const button = make("button", { type: "button", class: "play", id: "motion-play" });
    const slider = make("input", { type: "range", id: "motion-slider", min: 0, max: end, step: "any", "aria-label": "round" });
    const told = make("output", {}), curve = make("div", { class: "course" });
    place.append(make("div", { class: "controls" }, button, slider, told), make("div", { class: "planes" }, panels.map(({ figure }) => figure)), legend(view, kept, panels), curve);

    let now = 0;  // a place among the rounds; `kept.round` is the round of it while others come, none at the end
    const placeOf = (round) => {
      const low = Math.max(0, rounds.findLastIndex((one) => one <= round));
      return low < end && round > rounds[low] ? low + (round - rounds[low]) / (rounds[low + 1] - rounds[low]) : low;
    };
    const go = (value) => {
      now = Math.max(0, Math.min(value, end));
      const low = Math.min(Math.floor(now + 1e-9), end), round = between(rounds[low], rounds[Math.min(low + 1, end)], Math.max(0, now - low));
      kept.round = now < end ? round : undefined;
      slider.value = now;
      told.textContent = `round ${rounds[low]}`;
      slider.setAttribute("aria-valuetext", `round ${rounds[low]}`);
      for (const one of panels) one.draw(round);
      move(round);
      place.dataset.round = rounds[low];
    };
    const playing = (on) => { kept.playing = on; button.textContent = on ? "❚❚ pause" : "▶ play"; };
    let turn = 0;
    const play = () => {
      const begun = now, mine = ++turn;
      let since = null;
      playing(true);
      const step = (time) => {
        if (mine !== turn || !kept.playing || !place.isConnected) return;  // stopped, or drawn again elsewhere
        since ??= time;
        const to = begun + (time - since) / (still ? 2 * STEP : STEP);
        go(still ? Math.floor(to) : to);
        if (to >= end) playing(false);
        else requestAnimationFrame(step);
      };
      requestAnimationFrame(step);
    };
    const move = course(curve, view, panels, (round) => { playing(false); go(Math.max(0, rounds.findLastIndex((one) => one <= round))); });
    button.addEventListener("click", () => {
      if (kept.playing) { playing(false); return; }
      if (now >= end) now = 0;
      play();
    });
    slider.addEventListener("input", () => { const to = Number(slider.value); playing(false); go(to); });
    slider.addEventListener("keydown", (event) => {
      const way = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1 }[event.key];
      if (way) { event.preventDefault(); playing(false); go(Math.round(now) + way); }
    });
    go(kept.round === undefined ? end : placeOf(kept.round));
    if (kept.playing) play(); else playing(false);
  };
  const note = (view) => `The same test samples (dots; solid: answered rightly) and prototypes after each of up to 30 rounds, of the first run of each line. One linear projection of all rounds and runs: each round is rotated onto the next, which changes no distance, and the classes of the last rounds are laid out around a ring.${view.data.motion && view.data.motion.left_out ? ` ${view.data.motion.left_out} further lines are left out.` : ""} Point at a dot, or focus a plane and use the arrow keys, to see a sample.`;
  return { name: "motion", title: "Prototypes in motion", controls, draw, note, there: (view) => Boolean(view.data.motion) };
})());
