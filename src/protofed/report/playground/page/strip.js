// Every prototype at its distance, a row for each class, and the line beyond which the answer is “I do not know”.
const strip = (() => {
  const { make, number } = protofed;
  const ROWS = 12;  // classes, and names below
  const MOST = 500;  // dots
  const HIGH = 20, LEFT = 70, RIGHT = 8, BELOW = 22, LONGEST = 9;  // pixels, and letters of a name
  const place = document.getElementById("strip");
  const owner = ({ client }) => (client === null ? "your drawings" : client < 0 ? "several clients" : `client ${client}`);
  const colour = ({ client }) => held.colours[client] || (client === null ? "var(--ink)" : "var(--edge)");
  const dot = (one) => { const node = make("span", { class: "dot", "aria-hidden": "true" }); node.style.background = colour(one); return node; };
  const short = (name) => (name.length > LONGEST ? `${name.slice(0, LONGEST - 1)}…` : name);

  const draw = (found, limit) => {
    const [first] = found, near = [...new Set(found.map(({ name }) => name))].slice(0, ROWS), names = knowledge.names().filter((name) => near.includes(name));
    const wide = Math.max(260, place.clientWidth), end = wide - RIGHT, high = HIGH * names.length, widest = 1.03 * found[found.length - 1].distance;
    const at = (distance) => LEFT + ((end - LEFT) * Math.max(0, Math.min(widest, distance))) / widest, middle = (name) => HIGH * (names.indexOf(name) + 0.5);
    const rows = names.flatMap((name) => [
      make("line", { class: "grid", x1: LEFT, x2: end, y1: middle(name), y2: middle(name) }),
      make("text", { x: LEFT - 10, y: middle(name) + 4, "text-anchor": "end", class: name === first.name ? "won" : null }, short(name)),
    ]);
    const dots = found.filter(({ name }) => names.includes(name)).slice(0, MOST).reverse().map((one) => make("circle", {
      cx: at(one.distance), cy: middle(one.name), r: one === first ? 7 : 4.5, fill: colour(one), class: one === first ? "won" : null,
      "data-tip": `class ${one.name}, ${owner(one)}\n${one.distance.toFixed(3)} away`,
    }));
    const figure = make("svg", { width: wide, height: high + BELOW, viewBox: `0 0 ${wide} ${high + BELOW}`, role: "img", "aria-label": "how far every prototype is; the nearest are in the table" },
      rows, make("rect", { class: "beyond", x: at(limit), width: Math.max(0, end - at(limit)), y: 0, height: high }), make("line", { class: "limit", x1: at(limit), x2: at(limit), y1: 0, y2: high }), dots,
      make("text", { x: LEFT, y: high + 16 }, "0"), make("text", { x: end, y: high + 16, "text-anchor": "end" }, `distance ${number(widest)}`));
    const owners = [...new Map(found.map((one) => [owner(one), one])).values()].sort((a, b) => owner(a).localeCompare(owner(b), "en", { numeric: true }));
    place.replaceChildren(figure, ...(owners.length > ROWS ? [] : [make("ul", { class: "legend" }, owners.map((one) => make("li", {}, dot(one), owner(one))))]));
  };

  return { draw, dot, owner };
})();
