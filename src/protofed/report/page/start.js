// The page: its head, a section for each component, and, in the viewer, news every few seconds.
(() => {
  const { make, components, control } = protofed;
  const EVERY = 3000;  // milliseconds between two questions
  const view = {
    data: JSON.parse(document.getElementById("data").textContent),
    score: null,
    hidden: new Set(),  // lines that are not drawn
    ticked: new Set(),  // runs that are compared, in the viewer
    reading: false,  // whether details are still to come
    colour: (n) => view.data.colours[n % view.data.colours.length],
    place: (name) => (seats.has(name) ? seats.get(name).n : -1),
    lines: () => Object.keys(view.data.lines || {}),
    called: (name) => {  // a line of which no run came to its end says so
      const unfinished = (view.data.lines[name] || []).filter((run) => !run.complete).map((run) => run.ending);
      return unfinished.length ? `${name} (${[...new Set(unfinished)].join(", ")})` : name;
    },
    shown: () => view.lines().filter((name) => !view.hidden.has(name)),
    toggle: (name, alone) => {
      const others = view.lines().filter((one) => one !== name);
      if (alone) view.hidden = new Set(others.every((one) => view.hidden.has(one)) ? [] : others);
      else if (!view.hidden.delete(name)) view.hidden.add(name);
      view.redraw();
    },
    tick: (ids, on) => {
      view.data.all = false;
      for (const id of ids) if (on && view.ticked.size < view.data.most) view.ticked.add(id); else if (!on) view.ticked.delete(id);
      history.replaceState(null, "", `#runs=${[...view.ticked].join(",")}`);
      view.redraw("runs");
      news();
    },
    choose: (score) => { view.score = score; view.redraw(); },
  };
  // A line keeps its number, and so its colour, while one of its runs is there, whatever else is compared with it.
  let seats = new Map();
  const seat = () => {
    const before = [...seats.values()], taken = new Set(), now = new Map();
    for (const [name, runs] of Object.entries(view.data.lines || {})) {
      const paths = (runs || []).map((run) => run.name), same = before.find(({ n, paths: had }) => !taken.has(n) && had.some((path) => paths.includes(path)));
      now.set(name, { n: same ? same.n : null, paths });
      if (same) taken.add(same.n);
    }
    for (const one of now.values()) if (one.n === null) {
      one.n = 0;
      while (taken.has(one.n)) one.n++;
      taken.add(one.n);
    }
    seats = now;
  };
  const learn = (more) => {  // of colours the first are always the same
    const { colours } = view.data;
    Object.assign(view.data, more);
    if (colours.length > view.data.colours.length) view.data.colours = colours;
    seat();
  };
  seat();

  const kept = Object.fromEntries(components.map(({ name }) => [name, { name }]));
  const sections = new Map();

  // What stands above the sections, made anew only where it differs: whoever is in it stays there.
  let headed = "";
  const commands = ({ live, commands: some, studies, runs, ids }) => {
    if (!live) return some || [];
    const names = (runs || []).filter((row) => (ids || []).includes(row.id)).map((row) => row.name);
    return (studies || []).filter((study) => study.again && names.some((name) => study.name === "." || name.startsWith(`${study.name}/`))).map((study) => study.again);
  };
  const head = () => {
    const { data } = view, lines = view.lines(), top = document.getElementById("top");
    const again = commands(data), links = components.filter(({ name }) => !sections.get(name).hidden);
    const said = [data.title, lines, data.about, data.incomplete, data.tuning, data.trust, data.notes, again, data.scores, data.score, chosen.score, links.map(({ name }) => name)];
    if (headed === JSON.stringify(said)) return;
    headed = JSON.stringify(said);
    const facts = Object.entries(data.about || {}).map(([name, value]) => make("span", {}, `${name} `, make("b", {}, value)));
    const texts = [
      ...(data.incomplete || []).map((text) => make("p", { class: "warning" }, `${text}.`)),
      ...[...(data.tuning || []), ...(data.trust || [])].map((text) => make("p", {}, `${text}.`)),
      ...(data.notes || []).map((text) => make("p", {}, `Note: ${text}.`)),
    ];
    const list = (data.scores || []).length ? control({ name: "score", label: "accuracy, model/test/rule (or :metric):", options: () => data.scores, value: () => data.score }, chosen, view, () => view.choose(chosen.score)) : null;
    view.score = list ? chosen.score : null;
    const inside = top.contains(document.activeElement) ? document.activeElement.id : "";
    top.replaceChildren(make("h1", {}, data.live ? data.title : lines.join(", ")), facts.length ? make("p", { class: "facts" }, facts) : "", ...texts,
      again.length ? make("details", {}, make("summary", {}, "Run it again"), make("pre", { tabindex: 0 }, again.join("\n"))) : "",
      make("nav", { "aria-label": "sections" }, links.map(({ name, title }) => make("a", { href: `#${name}` }, title))), list ? make("p", { class: "controls" }, list) : "");
    if (inside) document.getElementById(inside)?.focus();
  };
  const tell = (text) => { const note = document.getElementById("note"); if (note.textContent !== text) note.textContent = text; };
  const chosen = { name: "page" };

  // What is held with a mouse or a finger is not taken away: its section is drawn again when it is let go.
  let held = null;
  const waiting = new Set();
  document.addEventListener("pointerdown", (event) => { held = event.target instanceof Element ? event.target.closest("section") : null; });
  for (const kind of ["pointerup", "pointercancel"]) document.addEventListener(kind, () => {
    held = null;
    setTimeout(() => { const some = [...waiting]; waiting.clear(); some.forEach(draw); });  // after the click
  });

  const places = (section) => [...section.querySelectorAll("button, select, input, [tabindex]")];
  const draw = (spec) => {
    if (held && held.id === spec.name) { waiting.add(spec); return; }
    const section = sections.get(spec.name), mine = kept[spec.name], [controls, figure, note] = section.children.length ? [...section.children].slice(1) : [];
    const there = spec.there ? spec.there(view) : view.lines().length > 0;
    section.hidden = !there;
    if (!there) return;
    const focused = section.contains(document.activeElement) ? document.activeElement : null, caret = focused && focused.type === "search" ? focused.selectionStart : null;
    const place = focused ? places(section).indexOf(focused) : -1;
    const scrolled = [...section.querySelectorAll(".tall, .wide")].map((one) => [one.scrollTop, one.scrollLeft]);
    controls.replaceChildren(...(spec.controls || []).map((one) => control(one, mine, view, () => draw(spec))));
    const into = make("div", { class: "figure" });
    figure.replaceWith(into);
    spec.draw(into, view, mine);
    const words = typeof spec.note === "function" ? spec.note(view) : spec.note || "";
    note.textContent = words;
    section.dataset.drawn = "yes";
    section.querySelectorAll(".tall, .wide").forEach((one, n) => { if (scrolled[n]) [one.scrollTop, one.scrollLeft] = scrolled[n]; });
    const again = focused && (focused.id ? document.getElementById(focused.id) : places(section)[place]);
    if (again && again !== document.activeElement) {
      again.focus({ preventScroll: true });
      if (caret !== null) again.setSelectionRange(caret, caret);
    }
  };
  view.redraw = (name) => {
    if (!name) head();  // which chooses the accuracy that sections show
    for (const spec of components) if (!name || spec.name === name) draw(spec);
    head();  // and knows which sections there are
  };

  for (const spec of components) {
    const section = make("section", { id: spec.name, "aria-labelledby": `${spec.name}-title` }, make("h2", { id: `${spec.name}-title` }, spec.title), make("p", { class: "controls" }), make("div", { class: "figure" }), make("p", { class: "note" }));
    sections.set(spec.name, section);
  }
  document.getElementById("main").replaceChildren(...sections.values());

  let wide = window.innerWidth;
  window.addEventListener("resize", () => { if (window.innerWidth !== wide) { wide = window.innerWidth; view.redraw(); } });
  protofed.dark.addEventListener("change", () => view.redraw());

  // The viewer: what the list says decides what else is asked for; nothing that has not changed is asked for again.
  let listed = "", drawn = null, asking = false, more = false, found = [];
  const ask = async (what) => {
    const answer = await fetch(what);
    if (!answer.ok) throw new Error((await answer.text()).slice(0, 500) || `${answer.status}`);
    return answer.text();
  };
  const progress = ({ runs, studies }) => {
    const count = (state) => runs.filter((row) => row.state === state).length;
    const waiting = studies.reduce((sum, study) => sum + study.waiting, 0), left = Math.max(0, ...runs.filter((row) => row.state === "going on").map((row) => row.left || 0));
    const parts = [[count("going on"), "going on"], [count("stopped"), "stopped"], [waiting, "not begun"], [count("failed"), "failed"], [count("unreadable"), "unreadable"]];
    const said = parts.filter(([number]) => number).map(([number, word]) => `${number} ${word}`).join(", ");
    if (!runs.length) return "";
    return count("going on") || count("stopped") || waiting ? `${said}${left ? `; about ${left < 90 ? `${left.toFixed(0)} s` : `${(left / 60).toFixed(0)} min`} left of those that go on` : ""}` : said ? `ended; ${said}` : "ended";
  };
  const compared = async () => {
    const rows = (view.data.runs || []).filter((row) => view.ticked.has(row.id));
    const state = rows.map((row) => `${row.id} ${row.version}`).join();
    if (state === drawn) return;
    drawn = state;
    const ids = rows.map((row) => row.id);
    if ((view.data.ids || []).some((id) => !ids.includes(id))) for (const name of found) delete view.data[name];  // those of other runs
    view.data.ids = ids;
    if (!rows.length) { Object.assign(view.data, { lines: {}, scores: [], about: {}, incomplete: [], trust: [], notes: [] }); seat(); view.redraw(); return; }
    view.reading = true;
    const query = `?runs=${rows.map((row) => row.id).join(",")}`;
    const numbers = JSON.parse(await ask(`numbers.json${query}`));
    learn(numbers);
    view.redraw();
    const details = JSON.parse(await ask(`details.json${query}`));
    found = Object.keys(details).filter((name) => name !== "colours");
    view.reading = false;
    learn(details);
    view.redraw();
  };
  const news = async () => {
    if (asking) { more = true; return; }
    asking = true;
    more = false;
    try {
      const text = await ask("runs.json");
      if (text !== listed) {
        listed = text;
        Object.assign(view.data, JSON.parse(text));
        if (view.data.all) view.ticked = new Set(view.data.runs.filter((row) => !row.trial).slice(0, view.data.most).map((row) => row.id));
        view.redraw("runs");
        Object.assign(view.data, JSON.parse(await ask("studies.json")));
      }
      tell(progress(view.data));
      await compared();
    } catch (error) {
      listed = "";
      drawn = null;
      tell(error instanceof TypeError ? "protofed does not answer; is it still running?" : error.message);
    }
    asking = false;
    head();
    if (more) news();
  };
  if (view.data.live) {
    const before = /^#runs=([0-9a-f,]+)$/.exec(location.hash);
    if (before) { view.ticked = new Set(before[1].split(",")); view.data.all = false; }
    view.redraw();
    news();
    setInterval(() => { if (!document.hidden) news(); }, EVERY);
    document.addEventListener("visibilitychange", () => { if (!document.hidden) news(); });
  } else view.redraw();
})();
