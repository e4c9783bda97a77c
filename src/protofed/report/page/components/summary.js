// A row a line: the chosen accuracy over seeds, and in words what may be concluded from it.
protofed.component((() => {
  const { by, make, number, sortable } = protofed;
  const draw = (at, view, kept) => {
    const { data, score } = view, more = [...new Set(data.summary.flatMap((row) => Object.keys(row.further)))];
    const against = data.summary.some((row) => row.setting) ? "against the best of its setting" : "against the best";
    const differ = data.summary.some((row) => row.cells[score] && row.cells[score].spread > 0);  // not where one model is tested on one set
    const apart = differ ? [["worst", "worst client"], ["spread", "spread"]] : [];
    const shown = data.summary.filter((row) => !view.hidden.has(row.label)), hidden = data.summary.length - shown.length;
    const rows = shown.map((row) => {
      const cell = row.cells[score];
      const lost = row.failed.length ? `${row.failed.length} of ${row.runs} runs: ${[...new Set(row.failed)].join(", ")}` : "";
      const rest = [...more.map((name) => (name in row.further ? row.further[name] : null)), row.megabytes, row.seconds];
      if (!cell) return [row.label, null, ...apart.map(() => null), ...rest, row.seeds ? "has no such accuracy" : lost];
      const value = `${cell.mean.toFixed(2)}${cell.std === null ? "" : ` ± ${cell.std.toFixed(2)}`}${cell.diagnostic ? " *" : ""}`;
      const says = cell.best ? "best" : cell.diagnostic ? "diagnostic, not ranked" : cell.says;
      return [row.label, by(cell.mean, cell.best ? make("b", {}, value) : value), ...apart.map(([of]) => by(cell[of], cell[of].toFixed(1))), ...rest, [says, lost].filter(Boolean).join("; ")];
    });
    const caption = `mean ± sample standard deviation over seeds, last round${hidden ? `; ${hidden} of ${data.summary.length} lines hidden, and still compared with` : ""}`;
    sortable(at, view, kept, { titles: ["method", score, ...apart.map(([, title]) => title), ...more, "MB", "seconds", against], rows, caption });
  };
  const note = (view) => `In bold the best mean${view.data.summary.some((row) => row.setting) ? " among the lines of one setting" : ""}. Worst client and spread (standard deviation) are over clients, mean over seeds; they are not there where all clients test one model on the same images. The test is a paired t-test over seeds, corrected for the number of comparisons (Holm); the interval is of 95 %, d is Cohen's for pairs: with three seeds only large and steady differences show. Runs that failed or were cut off are in no mean and no test. An asterisk marks a diagnostic: a rule that the method itself does not have. It is not ranked.`;
  return { name: "summary", title: "Summary", there: (view) => view.lines().length > 0 && view.score !== null, draw, note };
})());
