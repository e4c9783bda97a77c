// The page: what is on the board is answered at once, by the nearest prototype.
(() => {
  const { make, number } = protofed, { owner, dot } = strip;
  const SHOWN = 5;  // prototypes
  const REFUSED = 5;  // percent of the known, at the beginning
  const by = (id) => document.getElementById(id);
  const slider = by("refusal");
  const far = (distance) => make("data", { value: distance }, distance.toFixed(3));
  const percent = () => 100 - Number(slider.value);  // to the right, as in the figure, is farther
  const limit = () => knowledge.refusal().threshold[percent()];
  let features = null, asked = false, asking = false;

  const sample = ({ sample: n, picture }) => {
    if (picture) return drawing.shown(picture);
    return n < 0 ? null : drawing.shown(held.picture(held.sample_pictures, n));
  };
  const row = (one) => make("tr", { "data-tip": `prototype ${one.number} of ${owner(one)}` }, make("td", {}, sample(one)), make("th", { scope: "row" }, one.name),
    make("td", { class: "says" }, dot(one), owner(one)), make("td", {}, number(one.count)), make("td", {}, far(one.distance)));

  const answer = (found) => {
    const [first] = found, next = found.find(({ name }) => name !== first.name), refused = knowledge.refuses(first.distance, limit());
    const why = refused
      ? ["The nearest would be ", make("b", {}, first.name), ", ", far(first.distance), ` away: beyond ${limit().toFixed(3)}.`]
      : [far(first.distance), ` from a prototype of ${owner(first)}`, ...(next ? ["; ", make("b", {}, next.name), " is ", far(next.distance - first.distance), " farther."] : ["."])];
    by("said").replaceChildren(make("p", { class: refused ? "class refused" : "class" }, refused ? "I do not know" : first.name), make("p", {}, why));
    strip.draw(found, limit());
    by("nearest").replaceChildren(make("table", {}, make("caption", {}, `The nearest of ${found.length} prototypes${held.samples ? ", and the training picture nearest to each" : ""}`),
      make("thead", {}, make("tr", {}, make("td"), ...["class", "whose", "mean of", "distance"].map((title) => make("th", { scope: "col", class: title === "whose" ? "says" : null }, title)))),
      make("tbody", {}, found.slice(0, SHOWN).map(row))));
    const like = knowledge.alike(features);
    by("alike").replaceChildren(...(like < 0 ? [] : [drawing.shown(held.picture(held.sample_pictures, like)),
      make("p", {}, "The training picture that is most like it: ", make("b", {}, held.classes[held.samples.classes[like]]), ` of client ${held.samples.clients[like]}.`)]));
  };
  const nothing = () => {
    by("said").replaceChildren(make("p", { class: "class refused" }, "…"), make("p", {}, held.picks.length ? "Draw something, or pick a picture." : "Draw something."));
    for (const id of ["strip", "nearest", "alike"]) by(id).replaceChildren();
  };
  const redraw = () => {
    const { threshold, known, unknown } = knowledge.refusal(), at = percent(), part = (value) => `${(100 * value).toFixed(0)} %`;
    const rates = known ? `: ${part(known[at])} of test pictures of known classes${unknown ? ` and ${part(unknown[at])} of others` : ""}` : "";
    by("refused").textContent = `${threshold[at].toFixed(3)}${rates}`;
    if (features) answer(knowledge.nearest(features)); else nothing();
  };
  const look = async () => {  // at what is there now; while it looks, what changes is looked at afterwards
    asked = true;
    if (asking) return;
    asking = true;
    while (asked) {
      asked = false;
      const seen = board.current();
      features = seen && await network.features(seen.pixels);
      by("seen").replaceChildren(...(seen ? [drawing.shown(seen.pixels, `what the network sees of ${seen.name}`)] : [make("span", { class: "empty" })]));
      teaching.check();
      redraw();
    }
    asking = false;
  };

  const picks = held.picks.map((about, n) => {
    const name = about.client === null ? `a test picture of class ${about.class}` : `a training picture of class ${about.class}, client ${about.client}`;
    const pixels = held.picture(held.picked, n), button = make("button", { type: "button", "aria-label": name, "data-tip": name }, drawing.shown(pixels));
    button.addEventListener("click", () => board.pick({ pixels, name }));
    return make("li", {}, button);
  });
  by("picks").querySelector("ul").replaceChildren(...picks);
  by("picks").hidden = !picks.length;
  by("wanted").textContent = `It knows ${held.classes.join(", ")}.`;
  by("undo").addEventListener("click", board.undo);
  by("clear").addEventListener("click", board.clear);
  slider.addEventListener("input", redraw);
  const begin = () => { slider.value = held.refusal ? 100 - REFUSED : 100; };
  by("reset").addEventListener("click", () => { begin(); teaching.forget(); board.clear(); });
  begin();
  window.addEventListener("resize", redraw);
  teaching.follow(board.current, redraw);
  board.follow(look);
  by("note").textContent = "";
})();
