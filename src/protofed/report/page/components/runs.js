// The list of runs: found by words, sorted by any column; in the viewer ticked to be compared.
protofed.component((() => {
  const { make, by, number, sortable } = protofed;
  const FIRST = ["method", "dataset", "split", "alpha", "clients", "model", "seed"];
  const QUIET = new Set(["threads", "device", "engine", "width", "checkpoint_every"]);  // how a run was played, not what
  const PAUSE = 200;  // milliseconds after a letter, so that a word is looked for once
  const MOST = 5;  // other options that differ, with a column of their own
  // Method and seed, and the options that differ between runs: what is the same in all is said once, at the top.
  const columnsOf = ({ runs }) => {
    const differ = [...new Set(runs.flatMap((row) => Object.keys(row.options)))];
    const others = differ.filter((name) => !FIRST.includes(name) && !QUIET.has(name));
    return [...FIRST.filter((name) => name === "method" || name === "seed" || differ.includes(name)), ...others.slice(0, MOST)];
  };
  const option = (view, row, name) => (name in row.options ? row.options[name] : (view.data.common || {})[name]);
  const text = (value) => (value !== null && typeof value === "object" ? Object.entries(value).map(([name, one]) => `${name}=${typeof one === "object" ? JSON.stringify(one) : one}`).join(" ") : String(value));
  const said = (view, row) => {  // all that a word may be found in
    const options = { ...view.data.common, ...row.options };
    return [row.name, row.state, row.reason, row.score, ...Object.entries(options).map(([name, value]) => `${name}=${text(value)}`)].join(" ").toLowerCase();
  };
  const study = (row) => (row.name.includes("/") ? row.name.slice(0, row.name.indexOf("/")) : row.name);
  const found = (view, kept) => {
    const words = (kept.words || "").toLowerCase().split(/\s+/).filter(Boolean);
    return (view.data.runs || []).filter((row) => {
      if (kept.study && study(row) !== kept.study) return false;
      const all = said(view, row);
      return words.every((word) => (word.startsWith("-") && word.length > 1 ? !all.includes(word.slice(1)) : all.includes(word)));
    });
  };
  const draw = (at, view, kept) => {
    const { data } = view, rows = found(view, kept), live = data.live;
    const all = (data.runs || []).length, studies = [...new Set((data.runs || []).map(study))];
    const box = make("input", { type: "search", id: "runs-words", value: kept.words || "", placeholder: "words, option=value, -without" });
    box.addEventListener("input", () => { kept.words = box.value; clearTimeout(kept.typing); kept.typing = setTimeout(() => view.redraw("runs"), PAUSE); });
    const bar = [make("label", { for: "runs-words" }, "find ", box)];
    if (studies.length > 1) {
      const list = make("select", { id: "runs-study" }, make("option", { value: "" }, "all"), studies.map((name) => make("option", { value: name, selected: kept.study === name }, name)));
      list.addEventListener("change", () => { kept.study = list.value; view.redraw("runs"); });
      bar.push(make("label", { for: "runs-study" }, "folder ", list));
    }
    if (live) {
      for (const [id, label, ids, on] of [["runs-all", "tick these", () => found(view, kept).map((row) => row.id), true], ["runs-none", "untick all", () => [...view.ticked], false]]) {
        const button = make("button", { type: "button", id }, label);
        button.addEventListener("click", () => view.tick(ids(), on));
        bar.push(button, " ");
      }
    }
    at.append(make("p", { class: "controls" }, bar));
    if (!all) { at.append(make("p", { class: "note" }, live ? "There are no runs here yet; they appear as they begin." : "")); return; }
    const columns = columnsOf(data);
    const titles = [...(live ? ["compare"] : []), "run", ...columns, "rounds", "state", "%", "of", "loss", "MB", "seconds", "began"];
    const cells = rows.map((row) => {
      const tick = make("input", { type: "checkbox", id: `tick-${row.id}`, checked: view.ticked.has(row.id), "aria-label": `compare ${row.name}` });
      tick.addEventListener("change", () => view.tick([row.id], tick.checked));
      const open = make("button", { type: "button", class: "plain", id: `open-${row.id}`, title: "only this run" }, row.name);
      open.addEventListener("click", () => { view.ticked.clear(); view.tick([row.id], true); });
      const state = row.reason ? `${row.state === "ended" ? "" : `${row.state}: `}${row.reason}` : row.state;
      return [...(live ? [by(Number(view.ticked.has(row.id)), tick)] : []), live ? by(row.name, open) : row.name,
        ...columns.map((name) => { const value = option(view, row, name); return value === undefined || value === null ? null : typeof value === "number" ? by(value, String(value)) : text(value); }),
        by(row.done, row.rounds === null ? "" : `${row.done}/${row.rounds}`), by(row.state, make("span", { class: `state-${row.state.replace(" ", "-")}` }, state)),
        by(row.value, row.value === null ? "–" : row.value.toFixed(2)), row.score, by(row.loss, row.loss === null ? "–" : row.loss.toFixed(3)), row.megabytes, row.seconds,
        by(row.began, row.began ? new Date(1000 * row.began).toISOString().slice(0, 16).replace("T", " ") : "")];
    });
    const table = make("div", { class: "tall" });
    at.append(table);
    sortable(table, view, kept, { titles, rows: cells, caption: `${rows.length} of ${all} runs${live ? `, ${view.ticked.size} ticked (at most ${data.most})` : ""}`, left: live ? 2 : 1 });
  };
  return { name: "runs", title: "Runs", there: (view) => view.data.live || (view.data.runs || []).length > 0, draw, note: "% is the accuracy that the method's paper reports, in the last round; times are UTC." };
})());
