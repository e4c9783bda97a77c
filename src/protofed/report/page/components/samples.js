// Test pictures with their class and the answer of the last round: what a method takes for what.
protofed.component((() => {
  const { make } = protofed;
  const MOST = 60;  // pictures at a time
  const having = (view) => {
    const { motion } = view.data;
    return motion ? view.lines().filter((name) => motion.runs[name] && motion.samples[motion.runs[name].samples].pictures) : [];
  };
  const seen = (view, kept) => { const run = view.data.motion.runs[kept.line]; return { run, samples: view.data.motion.samples[run.samples] }; };
  const picture = (samples, at) => {
    const { png, across, width, height } = samples.pictures, zoom = Math.max(1, Math.round(56 / width));
    return make("svg", { class: "picture", viewBox: `${(at % across) * width} ${Math.floor(at / across) * height} ${width} ${height}`, width: width * zoom, height: height * zoom, "aria-hidden": "true" },
      make("image", { href: `data:image/png;base64,${png}`, width: across * width, height: Math.ceil(samples.points.length / across) * height }));
  };
  const draw = (at, view, kept) => {
    const { run, samples } = seen(view, kept), answers = run.answers[run.answers.length - 1];
    const found = samples.points.map(([cls, who], n) => ({ n, cls, who, answer: answers[n] }))
      .filter(({ cls, answer }) => (kept.which === "all" || (cls === answer) === (kept.which === "right")) && (kept.class === "all" || samples.classes[cls] === kept.class));
    at.append(make("p", {}, `${found.length} of ${samples.points.length} pictures${found.length > MOST ? `, the first ${MOST}` : ""}; the last round that was kept is ${run.rounds[run.rounds.length - 1]}`));
    at.append(make("ul", { class: "samples" }, found.slice(0, MOST).map(({ n, cls, who, answer }) => {
      const right = cls === answer, answered = answer < 0 ? "nothing" : samples.classes[answer];
      const words = `class ${samples.classes[cls]}, answered ${answered}\nclient ${who}`;
      return make("li", { class: right ? "right" : "wrong", "data-tip": words }, picture(samples, n), make("span", {}, right ? `${samples.classes[cls]} ✓` : `${samples.classes[cls]} → ${answered}`));
    })));
  };
  const classes = (view) => { const name = having(view)[0]; return name ? ["all", ...seen(view, { line: name }).samples.classes] : ["all"]; };
  return { name: "samples", title: "Test pictures", there: (view) => having(view).length > 0, draw, note: "A class and what it is taken for.",
    controls: [{ name: "line", label: "of", options: having }, { name: "which", label: "answered", options: () => [["all", "rightly or wrongly"], ["wrong", "wrongly"], ["right", "rightly"]] }, { name: "class", label: "class", options: classes }] };
})());
