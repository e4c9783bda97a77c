// The training loss, mean over the clients of a round.
protofed.component((() => {
  const { chart, series, switches, over, axes, WORDS } = protofed;
  const losses = (run) => ({ rounds: run.rounds, values: run.loss });
  const draw = (at, view, kept) => {
    chart(at, view, series(view, kept, losses), { xlabel: WORDS[kept.over], ylabel: "training loss", ...kept });
    at.append(switches(view.lines(), view));
  };
  return { name: "loss", title: "Training loss", controls: [over, ...axes], draw, note: "The mean over participants of their mean loss. Methods add terms of their own: only the shape of curves compares." };
})());
