// New classes: drawings that are kept until there are enough of them, and what came of those that were added.
const teaching = (() => {
  const { make } = protofed;
  const ENOUGH = 5;
  const by = (id) => document.getElementById(id);
  const [slots, keep, name, add, why, list] = ["kept", "keep", "name", "add", "why", "added"].map(by);
  let kept = [], changed = () => {}, current = () => null;

  const lacking = () => {
    if (kept.length < ENOUGH) return `${ENOUGH - kept.length} more to draw and keep`;
    if (!name.value.trim()) return "give it a name";
    return knowledge.names().includes(name.value.trim()) ? "there is a class of this name" : "";
  };
  const check = () => {
    why.textContent = lacking();
    add.disabled = lacking() !== "";
    keep.disabled = kept.length >= ENOUGH || !current();
    keep.textContent = `Keep for a new class${kept.length ? `, ${kept.length} of ${ENOUGH}` : ""}`;
  };
  const part = (value) => `${value.toFixed(1)} %`;
  const said = ({ examples, effect }) => [
    `${examples.length} drawings, of which ${part(effect.recognised)} are recognised when left out of the mean`,
    effect.images ? `of ${effect.images} test pictures of old classes ${part(effect.before)} were answered rightly before and ${part(effect.after)} are now; ${part(effect.taken)} are taken for it` : "what it does to old classes cannot be measured: the model came without test pictures",
  ].join("; ");

  const redraw = () => {
    slots.replaceChildren(...Array.from({ length: ENOUGH }, (_, n) => {
      if (!kept[n]) return make("li", {}, make("span", { class: "empty" }, `${n + 1}`));
      const button = make("button", { type: "button", "aria-label": `remove drawing ${n + 1}`, "data-tip": "remove it" }, drawing.shown(kept[n].pixels));
      button.addEventListener("click", () => { kept = kept.filter((one) => one !== kept[n]); redraw(); (slots.querySelector("button") || by("board")).focus(); });
      return make("li", {}, button);
    }));
    list.replaceChildren(...knowledge.added.map((one) => {
      const button = make("button", { type: "button", "aria-label": `remove the class ${one.name}` }, "Remove");
      button.addEventListener("click", () => { knowledge.forget(one.name); redraw(); changed(); (list.querySelector("button") || name).focus(); });
      return make("li", {}, drawing.shown(one.pictures[0]), make("p", {}, make("b", {}, one.name), `: ${said(one)}.`), button);
    }));
    check();
  };
  keep.addEventListener("click", async () => {
    const seen = current();
    if (!seen || kept.length >= ENOUGH) return;
    kept = [...kept, { pixels: seen.pixels, features: await network.features(seen.pixels) }];
    redraw();
    board.clear();
    (kept.length < ENOUGH ? by("board") : name).focus();
  });
  name.addEventListener("input", check);
  const teach = () => {
    if (lacking()) { check(); return; }
    knowledge.learned(name.value.trim(), kept.map(({ features }) => features), kept.map(({ pixels }) => pixels));
    [kept, name.value] = [[], ""];
    redraw();
    changed();
  };
  add.addEventListener("click", teach);
  name.addEventListener("keydown", (event) => { if (event.key === "Enter") teach(); });

  return {
    check, redraw,
    forget: () => { kept = []; name.value = ""; for (const one of [...knowledge.added]) knowledge.forget(one.name); redraw(); },
    follow: (seen, call) => { [current, changed] = [seen, call]; redraw(); },
  };
})();
