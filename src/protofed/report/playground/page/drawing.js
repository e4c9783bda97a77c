// From strokes, lists of points [x, y], to a picture as the data have them: cut, laid, inked and scaled alike.
const drawing = (() => {
  const PARTS = 4;  // of a pixel, each way
  const SMALLEST = 0.15;  // of the board: what is smaller, such as a dot, is not blown up
  const { channels, height, width, placement: { fill, middle, by_mass: byMass, pen, dark } } = held;
  const side = Math.min(width, height) * fill, thick = pen * side;

  // How much of each pixel is covered, 0 to 1: a pen of the same width, however large the drawing was.
  const inked = (strokes) => {
    const across = width * PARTS, down = height * PARTS, radius = (thick / 2) * PARTS, covered = new Uint8Array(across * down);
    for (const stroke of strokes) {
      const points = stroke.map(([x, y]) => [x * PARTS, y * PARTS]);
      for (let n = 0; n < Math.max(1, points.length - 1); n++) {
        const [ax, ay] = points[n], [bx, by] = points[n + 1] || points[n], dx = bx - ax, dy = by - ay, long = dx * dx + dy * dy || 1;
        const [top, bottom] = [Math.floor(Math.min(ay, by) - radius), Math.ceil(Math.max(ay, by) + radius)];
        const [left, right] = [Math.floor(Math.min(ax, bx) - radius), Math.ceil(Math.max(ax, bx) + radius)];
        for (let y = Math.max(0, top); y < Math.min(down, bottom); y++) for (let x = Math.max(0, left); x < Math.min(across, right); x++) {
          const px = x + 0.5 - ax, py = y + 0.5 - ay, along = Math.max(0, Math.min(1, (px * dx + py * dy) / long));
          if (Math.hypot(px - along * dx, py - along * dy) <= radius) covered[y * across + x] = 1;
        }
      }
    }
    const ink = new Float32Array(width * height);
    covered.forEach((one, n) => { ink[Math.floor(Math.floor(n / across) / PARTS) * width + Math.floor((n % across) / PARTS)] += one / PARTS ** 2; });
    return ink;
  };

  const centre = (ink) => {
    let mass = 0, x = 0, y = 0;
    ink.forEach((one, n) => { mass += one; x += one * ((n % width) + 0.5); y += one * (Math.floor(n / width) + 0.5); });
    return mass ? [x / mass, y / mass] : [width / 2, height / 2];
  };

  // The picture of strokes on a board of side 1, bytes [channels, height, width]; null where there are none.
  const picture = (strokes) => {
    const points = strokes.flat();
    if (!points.length) return null;
    const spans = [0, 1].map((axis) => { const values = points.map((point) => point[axis]); return [Math.min(...values), Math.max(...values)]; });
    const longest = Math.max(SMALLEST, ...spans.map(([from, to]) => to - from)), zoom = (side - thick) / longest;
    const [cx, cy] = spans.map(([from, to]) => (from + to) / 2), goal = [middle[0] * width, middle[1] * height];
    const laid = (dx, dy) => inked(strokes.map((stroke) => stroke.map(([x, y]) => [(x - cx) * zoom + goal[0] + dx, (y - cy) * zoom + goal[1] + dy])));
    let ink = laid(0, 0);
    if (byMass) { const [x, y] = centre(ink); ink = laid(goal[0] - x, goal[1] - y); }
    const bytes = Uint8Array.from(ink, (one) => Math.round(255 * (dark ? 1 - one : one)));
    return Uint8Array.from({ length: channels * bytes.length }, (_, n) => bytes[n % bytes.length]);
  };

  // A picture as an element; without a name it is there for the eye only.
  const shown = (pixels, name) => {
    const node = protofed.make("canvas", { class: "picture", width, height, ...(name ? { role: "img", "aria-label": name } : { "aria-hidden": "true" }) });
    const image = new ImageData(width, height), size = width * height;
    for (let n = 0; n < size; n++) {
      const colours = channels === 3 ? [0, 1, 2].map((channel) => pixels[channel * size + n]) : Array(3).fill(pixels[n]);
      image.data.set([...colours, 255], 4 * n);
    }
    node.getContext("2d").putImageData(image, 0, 0);
    return node;
  };

  return { picture, shown };
})();
