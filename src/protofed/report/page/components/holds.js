// Training samples by client and class.
protofed.component((() => {
  const { make, heat } = protofed;
  const nameOf = (look, n) => look.names[n] || (look.homes[n] >= 0 && look.domains.length > 1 ? look.domains[look.homes[n]] : "");
  const client = (look, n) => `client ${n}${nameOf(look, n) ? ` (${nameOf(look, n)})` : ""}`;
  protofed.client = client;
  protofed.looked = (view) => view.lines().filter((name) => view.data.looks && view.data.looks[name]);
  protofed.ofLine = { name: "line", label: "of", options: protofed.looked };
  protofed.absent = (at, view) => at.append(make("p", { class: "note" }, view.data.looks && !view.reading ? "Not known: a run writes this when it is complete and holds its clients' data." : "Being read …"));
  const draw = (at, view, kept) => {
    const look = (view.data.looks || {})[kept.line];
    if (!look) { protofed.absent(at, view); return; }
    heat(at, { values: look.holds, rows: look.holds.map((_, n) => client(look, n)), columns: look.classes, down: "client", across: "class", caption: `training samples of each client and class, ${kept.line}, first seed`,
      tip: (y, x, value) => `${client(look, y)}\nclass ${look.classes[x]}\n${value} samples` });
  };
  return { name: "holds", title: "Who holds what", controls: [protofed.ofLine], draw };
})());
