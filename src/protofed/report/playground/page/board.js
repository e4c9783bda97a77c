// What is drawn on with a mouse, a finger or the keys; it also shows a picture that was picked instead.
const board = (() => {
  const { make } = protofed;
  const STEP = 1 / 32;  // of the board, for an arrow key
  const THIN = 0.03;  // of the board: a line can be seen
  const node = document.getElementById("board"), lines = make("g"), cursor = make("circle", { r: 0.02 });
  let strokes = [], picked = null, pointer = null, down = false, at = [0.5, 0.5], changed = () => {};
  node.append(make("p", { "aria-hidden": "true" }, "draw here"), make("svg", { viewBox: "0 0 1 1", "aria-hidden": "true" }, lines, cursor));

  const redraw = () => {
    const width = Math.max(THIN, 0.75 * held.placement.pen);
    const points = (stroke) => (stroke.length > 1 ? stroke : [...stroke, ...stroke]).map((point) => point.join(",")).join(" ");
    lines.replaceChildren(...strokes.map((stroke) => make("polyline", { points: points(stroke), "stroke-width": width })));
    node.querySelector("canvas")?.remove();
    if (picked) node.prepend(drawing.shown(picked.pixels));
    cursor.setAttribute("cx", at[0]);
    cursor.setAttribute("cy", at[1]);
    node.classList.toggle("down", down);
    node.classList.toggle("blank", !strokes.length && !picked);
    changed();
  };
  const begin = (point) => { picked = null; strokes.push([point]); at = point; redraw(); };
  const go = (point) => { strokes[strokes.length - 1].push(point); at = point; };
  const set = (kept, picture = null) => { strokes = kept; picked = picture; down = false; pointer = null; redraw(); };
  const within = (value) => Math.max(0, Math.min(1, value));

  const place = (event) => { const { left, top, width, height } = node.getBoundingClientRect(); return [within((event.clientX - left) / width), within((event.clientY - top) / height)]; };
  node.addEventListener("pointerdown", (event) => {
    if (event.button !== 0 || pointer !== null) return;
    node.setPointerCapture(event.pointerId);
    [pointer, down] = [event.pointerId, false];
    begin(place(event));
  });
  node.addEventListener("pointermove", (event) => {
    if (event.pointerId !== pointer) return;
    for (const one of event.getCoalescedEvents?.() || []) go(place(one));
    go(place(event));
    redraw();
  });
  for (const end of ["pointerup", "pointercancel"]) node.addEventListener(end, (event) => { if (event.pointerId === pointer) pointer = null; });

  node.addEventListener("keydown", (event) => {
    const way = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
    if ((!way && event.key !== " ") || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    if (way) {
      const point = at.map((value, axis) => within(value + way[axis] * STEP));
      if (down) go(point); else at = point;
    } else {
      down = !down;
      if (down) begin(at);
    }
    redraw();
  });

  return {
    // Bytes of what is on it, and its name if it was picked; null where there is nothing.
    current: () => { const pixels = picked ? picked.pixels : drawing.picture(strokes); return pixels && { pixels, name: picked ? picked.name : "a drawing" }; },
    pick: (picture) => set([], picture),
    clear: () => set([]),
    undo: () => set(strokes.slice(0, -1)),
    follow: (call) => { changed = call; redraw(); },
  };
})();
