// What is known: prototypes, those of new classes too, and from which distance on an answer is refused.
const knowledge = (() => {
  const PERCENTAGES = 101;
  const ROUNDING = 1 + 1e-6;  // the network's, here and elsewhere
  const { classes, prototypes: { classes: labels, clients, numbers, counts, samples } } = held;
  const distance = (a, b) => { let sum = 0; for (let n = 0; n < a.length; n++) sum += (a[n] - b[n]) ** 2; return Math.sqrt(sum); };
  const mean = (rows) => Float32Array.from(rows[0], (_, n) => rows.reduce((sum, row) => sum + row[n], 0) / rows.length);
  const own = labels.map((label, n) => ({
    name: classes[label], client: clients[n], number: numbers[n], count: counts[n], sample: samples ? samples[n] : -1,
    vector: held.feature(held.vectors, n),
  }));
  const added = [];  // classes without training, in the order of time

  // Every prototype with its distance, nearest first.
  const nearest = (features) => [...own, ...added.map(({ prototype }) => prototype)]
    .map((prototype) => ({ ...prototype, distance: distance(prototype.vector, features) })).sort((a, b) => a.distance - b.distance);

  // The refusals of protofed.serving.refusal: for each percentage the distance that so many of the known are beyond.
  const thresholds = (known) => {
    const sorted = [-1, ...Float64Array.from(known).sort()], most = known.length;
    return Array.from({ length: PERCENTAGES }, (_, percent) => sorted[Math.min(most, Math.ceil((most + 1) * (1 - percent / (PERCENTAGES - 1)) - 1e-9))]);
  };
  const parts = (far, limits) => limits.map((limit) => far.filter((one) => one > limit).length / far.length);
  const calibrated = (known, unknown) => {
    if (known.length < 2) return null;
    const threshold = thresholds(known), [one, other] = [0, 1].map((odd) => known.filter((_, n) => n % 2 === odd));
    const [there, back] = [parts(one, thresholds(other)), parts(other, thresholds(one))];
    return { threshold, known: there.map((part, n) => (part + back[n]) / 2), ...(unknown.length ? { unknown: parts(unknown, threshold) } : {}) };
  };

  // Test pictures: how far each is from what is known, and whether it is answered rightly (2: it is of no class).
  const percent = (hits) => (hits.length ? (100 * hits.filter(Boolean).length) / hits.length : null);
  let tested = { far: [...held.held_far], right: [...held.held_right] };
  const untaught = { ...tested };

  // A class more, as protofed.serving.add_class has it: the mean of the features of its examples, of which there are several.
  const learned = (name, examples, pictures) => {
    const vector = mean(examples), ofClass = (values) => values.filter((_, n) => tested.right[n] !== 2);
    const rest = examples.length - 1, total = vector.map((_, n) => examples.reduce((sum, row) => sum + row[n], 0));
    const others = examples.map((one) => one.map((value, n) => (total[n] - value) / rest));
    const recognised = percent(examples.map((one, n) => distance(one, others[n]) < nearest(one)[0].distance));
    const to = tested.far.map((_, n) => distance(held.feature(held.held_features, n), vector)), won = to.map((far, n) => far < tested.far[n]);
    const before = tested.right, after = before.map((right, n) => (right === 2 ? 2 : Number(right === 1 && !won[n])));
    tested = { far: tested.far.map((far, n) => Math.min(far, to[n])), right: after };
    const effect = { recognised, images: ofClass(won).length, before: percent(ofClass(before)), after: percent(ofClass(after)), taken: percent(ofClass(won)) };
    const prototype = { name, client: null, number: 0, count: examples.length, sample: -1, picture: pictures[0], vector };
    added.push({ name, examples, pictures, prototype, effect, table: calibrated(ofClass(tested.far), tested.far.filter((_, n) => tested.right[n] === 2)) });
  };
  const forget = (name) => {  // what came after it is learned again
    const kept = added.filter((one) => one.name !== name);
    added.length = 0;
    tested = { ...untaught };
    for (const one of kept) learned(one.name, one.examples, one.pictures);
  };

  // The distances that the slider goes through, from the largest on; without test pictures they are evenly spaced.
  const even = () => {
    const middle = mean(own.map(({ vector }) => vector)), widest = 2 * Math.max(...own.map(({ vector }) => distance(vector, middle)));
    return { threshold: Array.from({ length: PERCENTAGES }, (_, n) => widest * (1 - n / (PERCENTAGES - 1))) };
  };
  const plain = held.refusal || even();
  const refusal = () => added.map(({ table }) => table).reduce((table, later) => later || table, plain);

  return {
    nearest, refusal, added, learned, forget,
    names: () => [...classes, ...added.map(({ name }) => name)], refuses: (far, limit) => far > limit * ROUNDING,
    alike: (features) => (held.samples ? held.samples.classes.reduce(([best, least], _, n) => {
      const far = distance(held.feature(held.sample_features, n), features);
      return far < least ? [n, far] : [best, least];
    }, [-1, Infinity])[0] : -1),
  };
})();
