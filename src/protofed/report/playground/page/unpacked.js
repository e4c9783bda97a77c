// What the page holds: facts in JSON, and one packed piece with numbers, pictures, the network and what runs it.
const held = await (async () => {
  const KINDS = { float32: Float32Array, uint8: Uint8Array };
  const text = (id) => document.getElementById(id).textContent;
  const { parts, ...about } = JSON.parse(text("data"));
  const packed = Uint8Array.from(atob(text("packed")), (letter) => letter.charCodeAt(0));
  document.getElementById("packed").remove();  // megabytes of text
  const bytes = await new Response(new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"))).arrayBuffer();
  const [channels, height, width] = about.shape;
  const all = Object.fromEntries(Object.entries(parts).map(([name, [kind, begin, size]]) => [name, new KINDS[kind](bytes.slice(begin, begin + size))]));
  const row = (values, n, size) => values.subarray(n * size, (n + 1) * size);
  return {
    ...about, ...all, channels, height, width,
    feature: (values, n) => row(values, n, about.feature_size),
    picture: (values, n) => row(values, n, channels * height * width),
  };
})().catch((error) => {
  document.getElementById("note").textContent = `This browser cannot unpack the page: ${error.message}`;
  throw error;
});
