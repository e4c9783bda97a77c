// The rounds that runs have kept: two planes side by side, and below them a curve with a cursor.
protofed.component((() => {
  const { make, tell, hush, legend: keys } = protofed;
  const SIDE = 400, GRID = 1000, STEP = 350, TRAIL = 8;  // units of a plane and of its grid; milliseconds and rounds
  const choice = (text, options, value) => {
    const select = make("select", {}, options.map(([key, name]) => make("option", { value: key, selected: key === value }, name)));
    return [make("label", {}, `${text} `, select), select];
  };
  const SHAPES = ["M0,-6L5.5,4L-5.5,4Z", "M-5,-5L5,-5L5,5L-5,5Z", "M0,-7L7,0L0,7L-7,0Z"];
  const still = window.matchMedia("(prefers-reduced-motion: reduce)").matches;
  const STOPPED = "▶ play", PLAYING = "❚❚ pause";
  const scaled = (value) => (value / GRID) * SIDE;

  // What a run is at a time between two of its rounds: the place of the earlier one, and the part of the way on.
  const moment = (run, round) => {
    let at = 0;
    while (at + 1 < run.rounds.length && run.rounds[at + 1] <= round) at++;
    const next = Math.min(at + 1, run.rounds.length - 1);
    const part = next === at || round < run.rounds[at] ? 0 : (round - run.rounds[at]) / (run.rounds[next] - run.rounds[at]);
    return { at, next, part: still ? 0 : part };
  };
  const between = (from, to, part) => from + (to - from) * part;

  const draw = (place, view, kept) => {
    const data = view.data.motion, labels = Object.keys(data.runs);
    if (!labels.includes(kept.left)) Object.assign(kept, { left: labels[0], right: labels[1] || "" });
    const button = make("button", { type: "button", class: "play" }, STOPPED);
    const slider = make("input", { type: "range", min: 0, step: "any", "aria-label": "round" });
    const told = make("output", {});
    const names = labels.map((name) => [name, name]);
    const [leftLabel, left] = choice("left", names, kept.left);
    const [rightLabel, right] = choice("right", [["", "none"], ...names], kept.right);
    const [byLabel, by] = choice("colour by", ["class", "client", "domain"].map((word) => [word, word]), "class");
    const [classLabel, ofClass] = choice("class", [["", "all"]], "");
    const [clientLabel, ofClient] = choice("client", [["", "all"]], "");
    const [trailLabel, trails] = choice("trails", [["server", "of the server's prototypes"], ["clients", "of clients' class means"], ["", "none"]], "server");
    const planes = make("div", { class: "planes" });
    const curve = make("div", { class: "course" });
    const legend = make("div", {});
    place.append(make("div", { class: "controls" }, button, slider, told), make("div", { class: "controls" }, leftLabel, labels.length > 1 ? rightLabel : null, byLabel, classLabel, clientLabel, trailLabel), planes, legend, curve);

    let rounds = [], now = 0, panels = [], timer = 0;
    const roundAt = (value) => {
      const low = Math.min(Math.floor(value), rounds.length - 1), high = Math.min(low + 1, rounds.length - 1);
      return between(rounds[low], rounds[high], value - low);
    };

    const show = (event, sample, at, text) => {
      const image = at === null ? null : sample.pictures, lines = [text];
      if (at !== null && sample.rows[at]) lines.unshift(sample.rows[at]);
      if (image) {
        const { across, width, height } = image, zoom = Math.max(1, Math.round(84 / width));
        const box = `${(at % across) * width} ${Math.floor(at / across) * height} ${width} ${height}`;
        lines.unshift(make("svg", { class: "thumbnail", viewBox: box, width: width * zoom, height: height * zoom },
          make("image", { href: `data:image/png;base64,${image.png}`, width: across * width, height: Math.ceil(sample.points.length / across) * height })));
      }
      tell(lines, event.clientX, event.clientY);
    };

    const ink = (n) => (n < 0 ? "var(--soft)" : view.colour(n));
    const clients = [...new Set(data.samples.flatMap((sample) => sample.points.map((point) => point[1])))].sort((a, b) => a - b);
    const paint = (cls, client, domain) => ink({ class: cls, client: clients.indexOf(client), domain }[by.value]);
    const dimmed = (cls, client) => (ofClass.value !== "" && Number(ofClass.value) !== cls) || (ofClient.value !== "" && client >= 0 && Number(ofClient.value) !== client);

    const panel = (label) => {
      const run = data.runs[label], sample = data.samples[run.samples];
      const svg = make("svg", { viewBox: `0 0 ${SIDE} ${SIDE}`, role: "img", "aria-label": `features and prototypes of ${label}` });
      const lines = make("g", { class: "trails" }), dots = make("g", {}), marks = make("g", {}), count = make("span", { class: "count" });
      svg.append(lines, dots, marks);
      const state = { answers: null };
      const points = sample.points.map(([cls, client, domain], n) => {
        const dot = make("circle", { class: "sample", r: 4 });
        dot.addEventListener("pointermove", (event) => {
          const answer = state.answers[n];
          show(event, sample, n, `${sample.classes[cls]}, answered ${answer < 0 ? "nothing" : sample.classes[answer]}; client ${client}${sample.domains.length > 1 ? `; ${sample.domains[domain]}` : ""}`);
        });
        dot.addEventListener("pointerleave", hush);
        dots.append(dot);
        return dot;
      });
      const kept = run.marks.map((frame) => new Map(frame.map((mark) => [mark.slice(0, 4).join(), mark])));
      const shapes = new Map();
      for (const frame of kept) for (const [key, [kind, cls, client]] of frame) if (!shapes.has(key)) {
        const shape = make("path", { class: "prototype", d: SHAPES[Math.min(kind, SHAPES.length - 1)] });
        shape.addEventListener("pointermove", (event) => show(event, sample, null, kind === 0 ? `class mean of client ${client}: ${sample.classes[cls]}` : `${run.kinds[kind]} prototype of ${sample.classes[cls]}${client < 0 ? "" : `, client ${client}`}`));
        shape.addEventListener("pointerleave", hush);
        marks.append(shape);
        const trail = make("polyline", { fill: "none" });
        lines.append(trail);
        shapes.set(key, { shape, trail, kind, cls, client });
      }
      const draw = (round) => {
        const { at, next, part } = moment(run, round);
        const here = run.places[at], there = run.places[next];
        state.answers = run.answers[at];
        let known = 0;
        points.forEach((dot, n) => {
          const [cls, client, domain] = sample.points[n], tint = paint(cls, client, domain), right = state.answers[n] === cls;
          known += right;
          dot.setAttribute("cx", scaled(between(here[2 * n], there[2 * n], part)).toFixed(1));
          dot.setAttribute("cy", scaled(GRID - between(here[2 * n + 1], there[2 * n + 1], part)).toFixed(1));
          dot.setAttribute("fill", right ? tint : "transparent");
          dot.setAttribute("stroke", tint);
          dot.setAttribute("opacity", dimmed(cls, client) ? 0.08 : 0.8);
        });
        const wanted = trails.value && (trails.value === "server" && run.kinds.length > 1 ? "server" : "clients");
        for (const [key, { shape, trail, kind, cls, client }] of shapes) {
          const from = kept[at].get(key), to = kept[next].get(key) || from;
          shape.setAttribute("visibility", from ? "visible" : "hidden");
          const drawn = from && wanted === (kind ? "server" : "clients") && !dimmed(cls, client);
          trail.setAttribute("visibility", drawn ? "visible" : "hidden");
          if (!from) continue;
          const tint = paint(cls, client, -1), spot = [scaled(between(from[4], to[4], part)), scaled(GRID - between(from[5], to[5], part))];
          shape.setAttribute("transform", `translate(${spot[0].toFixed(1)},${spot[1].toFixed(1)})`);
          shape.setAttribute("fill", tint);
          shape.setAttribute("opacity", dimmed(cls, client) ? 0.08 : 1);
          if (!drawn) continue;
          const been = [];
          for (let n = Math.max(0, at - TRAIL); n <= at; n++) { const mark = kept[n].get(key); if (mark) been.push([scaled(mark[4]), scaled(GRID - mark[5])]); }
          trail.setAttribute("points", [...been, spot].map((one) => one.map((value) => value.toFixed(1)).join()).join(" "));
          trail.setAttribute("stroke", tint);
        }
        count.textContent = `round ${run.rounds[at]}: ${known} of ${points.length} right (${run.model} model, ${run.rule})`;
      };
      const figure = make("figure", { class: "steps" }, make("figcaption", {}, make("b", {}, label), " ", count), svg);
      return { label, run, sample, figure, draw };
    };

    const drawCurve = () => {
      const wide = Math.max(260, curve.clientWidth || 640), high = 170, at = { left: 44, right: wide - 12, top: 12, bottom: high - 34 };
      const last = Math.max(...panels.flatMap(({ run }) => [...run.rounds, ...run.curve.map((point) => point[0])]));
      const values = panels.flatMap(({ run }) => run.curve.map((point) => point[1]));
      const low = values.length ? Math.floor(Math.min(...values) / 10) * 10 : 0, top = values.length ? Math.max(low + 10, Math.ceil(Math.max(...values) / 10) * 10) : 100;
      const x = (round) => at.left + ((round - 1) / Math.max(1, last - 1)) * (at.right - at.left);
      const y = (value) => at.bottom - ((value - low) / (top - low)) * (at.bottom - at.top);
      const svg = make("svg", { viewBox: `0 0 ${wide} ${high}`, role: "img", "aria-label": "accuracy over rounds" });
      for (const value of [low, (low + top) / 2, top]) svg.append(make("line", { class: "grid", x1: at.left, x2: at.right, y1: y(value), y2: y(value) }), make("text", { x: at.left - 6, y: y(value) + 4, "text-anchor": "end" }, `${value}`));
      const shown = wide < 500 ? [1, last] : [1, Math.round(last / 4), Math.round(last / 2), Math.round((3 * last) / 4), last];
      for (const round of new Set(shown.filter((one) => one >= 1))) svg.append(make("text", { x: x(round), y: at.bottom + 15, "text-anchor": "middle" }, `${round}`));
      const scores = [...new Set(panels.map(({ run }) => run.score))];
      svg.append(make("text", { x: (at.left + at.right) / 2, y: high - 3, "text-anchor": "middle" }, `round; ${scores.join(", ")} in %`));
      for (const { label, run } of panels) if (run.curve.length) svg.append(make("polyline", { class: "score", fill: "none", stroke: view.colour(view.place(label)), "stroke-width": 2, points: run.curve.map(([round, value]) => `${x(round).toFixed(1)},${y(value).toFixed(1)}`).join(" ") }));
      const cursor = make("line", { class: "cursor", y1: at.top, y2: at.bottom }), beads = panels.map(({ label }) => make("circle", { r: 4, fill: view.colour(view.place(label)) }));
      svg.append(cursor, ...beads);
      const seek = (event) => {
        const box = svg.getBoundingClientRect(), round = 1 + (((event.clientX - box.left) * wide) / box.width - at.left) / (at.right - at.left) * Math.max(1, last - 1);
        let low = 0;
        while (low + 1 < rounds.length && rounds[low + 1] <= round) low++;
        stop();
        go(low);
      };
      svg.addEventListener("pointerdown", seek);
      svg.addEventListener("pointermove", (event) => { if (event.buttons) seek(event); });
      curve.replaceChildren(svg, keys(panels.map(({ label }) => [label, make("line", { x1: 0, x2: 28, y1: 6, y2: 6, stroke: view.colour(view.place(label)), "stroke-width": 3 })])));
      curve.move = (round) => {
        cursor.setAttribute("x1", x(round)); cursor.setAttribute("x2", x(round));
        panels.forEach(({ run }, n) => {
          const before = run.curve.filter((point) => point[0] <= round).at(-1);
          beads[n].setAttribute("visibility", before ? "visible" : "hidden");
          if (before) { beads[n].setAttribute("cx", x(before[0])); beads[n].setAttribute("cy", y(before[1])); }
        });
      };
    };

    const drawLegend = () => {
      const samples = [...new Set(panels.map(({ sample }) => sample))], column = { class: 0, client: 1, domain: 2 }[by.value];
      const found = [...new Set(samples.flatMap((sample) => sample.points.map((point) => point[column])))].sort((a, b) => a - b).slice(0, 30);
      const word = (n) => (by.value === "class" ? samples[0].classes[n] : by.value === "domain" ? samples[0].domains[n] : `client ${n}`);
      const kinds = [...new Set(panels.flatMap(({ run }) => run.kinds.map((kind, n) => `${Math.min(n, 2)}:${kind}`)))];
      const dot = (fill, stroke) => make("circle", { cx: 14, cy: 6, r: 4.5, fill, stroke });
      legend.replaceChildren(keys([...found.map((n) => [word(n), dot(paint(n, n, n), "none")]), ["right", dot("var(--soft)", "none")], ["wrong", dot("none", "var(--soft)")],
        ...kinds.map((kind) => [kind.slice(2) === "local" ? "class mean of a client" : `${kind.slice(2)} prototype`, make("path", { class: "prototype", d: SHAPES[kind[0]], transform: "translate(14,6)", fill: "var(--soft)" })])]));
    };

    const go = (value) => {
      now = Math.max(0, Math.min(value, rounds.length - 1));
      slider.value = now;
      const round = roundAt(now), whole = rounds[Math.floor(now + 1e-9)];
      told.textContent = `round ${whole}`;
      slider.setAttribute("aria-valuetext", `round ${whole}`);
      for (const one of panels) one.draw(round);
      curve.move(round);
      place.dataset.round = kept.round = whole;
    };
    const stop = () => { cancelAnimationFrame(timer); timer = 0; button.textContent = STOPPED; };
    const play = () => {
      if (timer) return stop();
      if (now >= rounds.length - 1) now = 0;
      button.textContent = PLAYING;
      const begun = now;
      let since = null;
      const step = (time) => {
        if (!place.isConnected) return;  // it is drawn again elsewhere
        since ??= time;
        const to = begun + (time - since) / (still ? 2 * STEP : STEP);
        go(still ? Math.floor(to) : to);
        if (to >= rounds.length - 1) return stop();
        timer = requestAnimationFrame(step);
      };
      timer = requestAnimationFrame(step);
    };

    const build = () => {
      const round = rounds.length ? roundAt(now) : kept.round ?? Infinity;
      Object.assign(kept, { left: left.value, right: right.value });
      panels = [...new Set([left.value, right.value].filter(Boolean))].map(panel);
      planes.replaceChildren(...panels.map((one) => one.figure));
      rounds = [...new Set(panels.flatMap(({ run }) => run.rounds))].sort((a, b) => a - b);
      slider.max = rounds.length - 1;
      const renew = (select, options) => { const kept = select.value; select.replaceChildren(...[["", "all"], ...options].map(([key, name]) => make("option", { value: key }, name))); select.value = options.some(([key]) => String(key) === kept) ? kept : ""; };
      const { classes, points } = panels[0].sample;
      renew(ofClass, classes.map((name, n) => [n, name]));
      renew(ofClient, [...new Set(points.map((point) => point[1]))].sort((a, b) => a - b).map((n) => [n, `client ${n}`]));
      drawLegend();
      drawCurve();
      go(Math.max(0, rounds.findLastIndex((one) => one <= round)));
    };
    button.addEventListener("click", play);
    slider.addEventListener("input", () => { const to = Number(slider.value); stop(); go(to); });
    slider.addEventListener("keydown", (event) => {
      const way = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1 }[event.key];
      if (way) { event.preventDefault(); stop(); go(Math.round(now) + way); }
    });
    for (const select of [left, right]) select.addEventListener("change", () => { stop(); build(); });
    for (const select of [by, ofClass, ofClient, trails]) select.addEventListener("change", () => { drawLegend(); go(now); });
    build();
  };
  const note = (view) => `The same test samples (dots; solid: answered rightly) and prototypes after each of up to 30 rounds, of the first run of each line. One linear projection of all rounds and runs: each round is rotated onto the next, which changes no distance, and the classes of the last rounds are laid out around a ring.${view.data.motion && view.data.motion.left_out ? ` ${view.data.motion.left_out} further lines are left out.` : ""} Point at a dot to see its sample.`;
  return { name: "motion", title: "Prototypes in motion", draw, note, there: (view) => Boolean(view.data.motion) };
})());
