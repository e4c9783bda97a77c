"use strict";
// What every component uses: elements, numbers, what is explained where one points, controls, and the list of components.
const protofed = (() => {
  const SVG = "http://www.w3.org/2000/svg";
  const DRAWN = new Set(["svg", "g", "path", "circle", "rect", "line", "text", "polygon", "polyline", "image", "title"]);

  // An element; names that users choose only ever become text.
  const make = (tag, attributes = {}, ...children) => {
    const node = DRAWN.has(tag) ? document.createElementNS(SVG, tag) : document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (value === true) node.setAttribute(name, "");
      else if (value !== false && value !== null && value !== undefined) node.setAttribute(name, value);
    }
    node.append(...children.flat().filter((child) => child !== null && child !== undefined));
    return node;
  };

  const finite = (values) => values.filter((value) => value !== null && Number.isFinite(value));
  const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;
  const deviation = (values) => {  // of a sample
    if (values.length < 2) return 0;
    const middle = mean(values);
    return Math.sqrt(values.reduce((sum, value) => sum + (value - middle) ** 2, 0) / (values.length - 1));
  };
  const UNITS = [[1e9, "G"], [1e6, "M"], [1e4, "k", 1e3]];
  const number = (value) => {
    if (value === null || value === undefined || !Number.isFinite(value)) return "–";
    const [, letter, by] = UNITS.map(([from, sign, part]) => [from, sign, part || from])
      .find(([from]) => Math.abs(value) >= from) || [0, "", 1];
    return `${+(value / by).toPrecision(3)}${letter}`;
  };

  // What is pointed at is said in one place: `data-tip` on any element, or `tell` for what moves.
  const tip = document.getElementById("tip");
  const tell = (lines, x, y) => {
    tip.replaceChildren(...lines.map((line) => make("div", {}, line)));
    tip.hidden = false;
    tip.style.left = `${Math.max(4, Math.min(x + 14, window.innerWidth - tip.offsetWidth - 4))}px`;
    tip.style.top = `${Math.max(4, Math.min(y + 14, window.innerHeight - tip.offsetHeight - 4))}px`;
  };
  const hush = () => { tip.hidden = true; };
  // What a mouse or a finger points at: a tap sends no pointermove, and says that it leaves as soon as it is lifted.
  const pointed = (node, show, leave = hush) => {
    for (const kind of ["pointermove", "pointerdown"]) node.addEventListener(kind, show);
    node.addEventListener("pointerleave", (event) => { if (event.pointerType !== "touch") leave(); });
  };
  pointed(document, (event) => {
    const about = event.target instanceof Element && event.target.closest("[data-tip]");
    if (about) tell(about.dataset.tip.split("\n"), event.clientX, event.clientY);
    else if (!(event.target instanceof Element && event.target.closest(".steps"))) hush();
  });
  document.addEventListener("keydown", (event) => { if (event.key === "Escape") hush(); });
  window.addEventListener("scroll", hush, { passive: true });

  // A figure whose places, `count()` of them, are visited with the arrow keys, as those of a slider.
  const steps = (figure, label, count, say, show) => {
    const node = make("div", { class: "steps", tabindex: 0, role: "slider", "aria-label": label, "aria-valuemin": 0 }, figure);
    let at = -1;
    const go = (to) => {
      at = Math.max(0, Math.min(count() - 1, to));
      node.setAttribute("aria-valuemax", Math.max(0, count() - 1));
      node.setAttribute("aria-valuenow", at);
      node.setAttribute("aria-valuetext", say(at));
      show(at);
    };
    node.setAttribute("aria-valuemax", Math.max(0, count() - 1));
    node.setAttribute("aria-valuenow", 0);
    node.setAttribute("aria-valuetext", "arrow keys move");
    node.addEventListener("keydown", (event) => {
      const to = { ArrowRight: at + 1, ArrowUp: at + 1, ArrowLeft: at - 1, ArrowDown: at - 1, Home: 0, End: count() - 1,
        PageUp: at + 10, PageDown: at - 10 }[event.key];
      if (to === undefined || !count()) return;
      event.preventDefault();
      go(to);
    });
    node.addEventListener("blur", hush);
    return node;
  };

  // A figure with small marks: `places()` are [x, y, lines] in its units; a finger need not meet one exactly.
  const NEAR = 18;  // pixels
  const spots = (svg, label, places) => {
    const zoom = () => { const box = svg.getBoundingClientRect(); return [box, box.width / svg.viewBox.baseVal.width || 1]; };
    const at = ([x, y]) => { const [box, by] = zoom(); return [box.left + x * by, box.top + y * by]; };
    pointed(svg, (event) => {
      const [box, by] = zoom(), x = (event.clientX - box.left) / by, y = (event.clientY - box.top) / by;
      const far = (one) => Math.hypot(one[0] - x, one[1] - y), near = places().reduce((best, one) => (best && far(best) <= far(one) ? best : one), null);
      if (near && far(near) * by <= NEAR) tell(near[2](), event.clientX, event.clientY);
      else hush();
    });
    return steps(svg, label, () => places().length, (n) => places()[n][2]().filter((line) => typeof line === "string").join("; "), (n) => tell(places()[n][2](), ...at(places()[n])));
  };

  const components = [];
  const component = (spec) => components.push(spec);

  // The value of a control is kept while data change; where what was chosen is gone, it is the first choice again.
  const control = (spec, kept, view, change) => {
    const id = `${kept.name}-${spec.name}`;
    const set = (value) => { kept[spec.name] = value; change(); };
    if (spec.check) {
      if (kept[spec.name] === undefined) kept[spec.name] = false;
      const box = make("input", { type: "checkbox", id, checked: kept[spec.name] });
      box.addEventListener("change", () => set(box.checked));
      return make("label", { for: id }, box, ` ${spec.label}`);
    }
    if (spec.number) {
      if (kept[spec.name] === undefined) kept[spec.name] = spec.value(view);
      const box = make("input", { type: "number", id, min: spec.number[0], max: spec.number[1], value: kept[spec.name] });
      box.addEventListener("input", () => set(Number(box.value)));
      return make("label", { for: id }, `${spec.label} `, box, spec.after || "");
    }
    const options = spec.options(view, kept).map((one) => (Array.isArray(one) ? one : [one, one]));
    if (!options.some(([value]) => value === kept[spec.name])) {
      kept[spec.name] = spec.value && options.length ? spec.value(view, kept) : options.length ? options[0][0] : null;
    }
    const list = make("select", { id }, options.map(([value, text]) =>
      make("option", { value, selected: value === kept[spec.name] }, text)));
    list.addEventListener("change", () => set(options[list.selectedIndex][0]));
    return make("label", { for: id }, `${spec.label} `, list);
  };

  return { make, finite, mean, deviation, number, tell, hush, pointed, steps, spots, components, component, control };
})();
