// Which class is taken for which.
protofed.component((() => {
  const { heat, ofLine, absent } = protofed;
  const draw = (at, view, kept) => {
    const look = (view.data.looks || {})[kept.line];
    if (!look) { absent(at, view); return; }
    heat(at, { values: look.confusion, rows: look.classes, columns: look.classes, down: "class", across: "answer", caption: `test images of each class by answer, ${kept.line}, ${look.model} model, ${look.rule}, first seed`,
      tip: (y, x, value) => `${value} of class ${look.classes[y]}\nanswered as ${look.classes[x]}` });
  };
  return { name: "confusion", title: "Confusion", controls: [ofLine], draw };
})());
