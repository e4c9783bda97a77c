// How many images of each class are answered rightly, method beside method.
protofed.component((() => {
  const { heat, looked, absent } = protofed;
  const draw = (at, view) => {
    const lines = looked(view).filter((name) => !view.hidden.has(name));
    if (!lines.length) { absent(at, view); return; }
    const alike = [...new Set(lines.map((name) => JSON.stringify(view.data.looks[name].classes)))];
    for (const key of alike) {
      const classes = JSON.parse(key), some = lines.filter((name) => JSON.stringify(view.data.looks[name].classes) === key);
      const asked = some.map((name) => view.data.looks[name].confusion.map((row) => row.reduce((sum, value) => sum + value, 0)));
      const values = some.map((name, n) => view.data.looks[name].confusion.map((row, k) => (asked[n][k] ? (100 * row[k]) / asked[n][k] : null)));
      heat(at, { values, rows: some, columns: classes, down: "method", across: "class", most: 100, say: (value) => value.toFixed(0), caption: "share of each class's test images that is answered rightly, in percent, first seed",
        tip: (y, x, value) => `${some[y]}\nclass ${classes[x]}\n${value.toFixed(1)} % of ${asked[y][x]} images` });
    }
  };
  return { name: "classes", title: "Classes", draw, note: "By the model and rule that the method's paper reports; of at most 50 clients, 200 test images each." };
})());
