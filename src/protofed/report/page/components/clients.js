// Accuracy by client and by domain: how far clients are apart, each one's numbers, and one client over rounds.
protofed.component((() => {
  const { make, mean, span, frame, width, spots, switches, sortable, chart, by, client } = protofed;
  const dots = (at, view, found) => {
    const row = 34, wide = width(at), label = `${view.score} of a client, %`;
    const { svg, across } = frame({ wide, height: 58 + row * found.length, x: span(found.flatMap((one) => [...one.values, ...Object.values(one.domains)])), y: null, xlabel: label });
    const places = [];
    found.forEach((one, n) => {
      const y = 14 + row * (n + 0.5), colour = view.colour(one.n);
      one.values.forEach((value, k) => {
        const who = one.who[k], words = [one.name, `${one.called(who)}: ${value.toFixed(1)} %`];
        places.push([across(value), y + (((who * 7) % 11) - 5), () => words]);
        svg.append(make("circle", { class: "dot", cx: across(value), cy: y + (((who * 7) % 11) - 5), r: 4, fill: colour, stroke: "var(--panel)", "stroke-width": 0.5 }));
      });
      svg.append(make("line", { x1: across(mean(one.values)), x2: across(mean(one.values)), y1: y - 13, y2: y + 13, stroke: "var(--ink)", "stroke-width": 2 }));
      for (const [domain, value] of Object.entries(one.domains)) {
        const words = [one.name, `domain ${domain}: ${value.toFixed(1)} %`];
        places.push([across(value), y, () => words]);
        svg.append(make("rect", { class: "domain", x: across(value) - 4, y: y - 4, width: 8, height: 8, fill: "var(--panel)", stroke: colour, "stroke-width": 2 }));
      }
    });
    at.append(spots(svg, label, () => places));
  };
  const draw = (at, view, kept) => {
    const { data, score } = view, looks = data.looks || {};
    const found = view.shown().flatMap((name) => {
      const run = data.lines[name].find((one) => one.clients[score]);
      if (!run) return [];
      const values = run.clients[score], lack = run.undefined[score] || [];
      const who = [...Array(values.length + lack.length).keys()].filter((n) => !lack.includes(n)), look = looks[name];
      return [{ name, n: view.place(name), values, who, domains: run.domains[score] || {}, look, called: (n) => (look && look.homes.length > n ? client(look, n) : `client ${n}`) }];
    });
    if (found.length) dots(at, view, found);
    at.append(switches(view.lines(), view));
    if (!found.length) return;
    const all = [...new Set(found.flatMap((one) => one.who))].sort((a, b) => a - b), first = found.find((one) => one.look);
    const rows = all.map((n) => {
      const name = make("button", { type: "button", class: "plain", id: `client-${n}`, "aria-pressed": String(kept.client === n) }, (first || found[0]).called(n));
      name.addEventListener("click", () => { kept.client = kept.client === n ? null : n; view.redraw("clients"); });
      const samples = first && first.look.holds[n] ? first.look.holds[n].reduce((sum, value) => sum + value, 0) : null;
      const values = found.map((one) => one.values[one.who.indexOf(n)]);
      return [by(n, name), samples, ...values.map((value) => (value === undefined ? null : by(value, value.toFixed(1))))];
    });
    const table = make("div", { class: "tall" });
    at.append(table);
    sortable(table, view, kept, { titles: ["client", "samples", ...found.map((one) => one.name)], rows, caption: `${score} of each client, last round, first seed; click a client for its curve` });
    if (kept.client !== null && kept.client !== undefined) {
      const series = found.flatMap((one) => {
        const each = (data.clients || {})[one.name];
        if (!each) return [];
        const points = each.rounds.map((round, k) => [round, each.values[k][each.clients[k].indexOf(kept.client)]]).filter((point) => point[1] !== undefined);
        return [{ name: one.name, n: one.n, points }];
      });
      at.append(make("h3", {}, `Client ${kept.client}`));
      chart(at, view, series, { xlabel: "round", ylabel: `${data.score}, %`, say: (value) => value.toFixed(1), height: 240 });
    }
    const domains = found.flatMap(({ name }) => data.lines[name].slice(0, 1).flatMap((run) => Object.entries(run.domains).map(([what, each]) => ({ name: `${name}: ${what}`, each }))));
    if (domains.length) {
      const titles = [...new Set(domains.flatMap(({ each }) => Object.keys(each)))];
      sortable(at, view, kept, { part: "-domains", titles: ["accuracy by domain", ...titles], rows: domains.map(({ name, each }) => [name, ...titles.map((title) => (title in each ? by(each[title], each[title].toFixed(1)) : null))]), caption: "last round, first seed" });
    }
  };
  return { name: "clients", title: "Clients and domains", there: (view) => view.score !== null && view.lines().length > 0, draw, note: "A dot a client (last round, first seed), a bar their mean; where an accuracy is known by domain (global/domain/…), a square a domain." };
})());
