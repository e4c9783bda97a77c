// What the runs were asked for, and where they differ.
protofed.component((() => {
  const { sortable } = protofed;
  const text = (value) => (value === undefined || value === null ? null : typeof value === "object" ? Object.entries(value).map(([name, one]) => `${name}=${JSON.stringify(one)}`).join(" ") : String(value));
  const draw = (at, view, kept) => {
    const { data } = view, ids = data.ids, rows = (data.runs || []).filter((row) => !ids || ids.includes(row.id));
    const asked = rows.map((row) => ({ ...data.common, ...row.options }));
    const groups = new Map();  // runs that differ in the seed alone are one column
    asked.forEach((options, n) => {
      const key = JSON.stringify({ ...options, seed: 0, threads: 0 });
      if (!groups.has(key)) groups.set(key, { options, names: [] });
      groups.get(key).names.push(rows[n].name);
    });
    const columns = [...groups.values()], names = [...new Set(asked.flatMap((options) => Object.keys(options)))];
    const differ = (name) => new Set(columns.map(({ options }) => text(options[name]))).size > 1;
    const shown = names.filter((name) => name !== "seed" && name !== "threads" && (kept.every || differ(name)));
    if (!shown.length) { at.append(document.createTextNode("The runs differ in nothing but the seed.")); return; }
    sortable(at, view, kept, { titles: ["option", ...columns.map(({ names: some }) => (some.length > 1 ? `${some[0]} and ${some.length - 1} more` : some[0]))], rows: shown.map((name) => [name, ...columns.map(({ options }) => text(options[name]))]), caption: kept.every ? "every option" : "options that differ" });
  };
  return { name: "configurations", title: "Configurations", controls: [{ name: "every", label: "also what is the same", check: true }], draw };
})());
