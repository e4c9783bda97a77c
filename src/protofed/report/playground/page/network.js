// The network: from a picture to its features.
const network = await (async () => {
  const { env, InferenceSession, Tensor } = globalThis.ort;
  Object.assign(env.wasm, { wasmBinary: held.wasm.buffer, numThreads: 1 });
  env.logLevel = "error";
  const session = await InferenceSession.create(held.network, { executionProviders: ["wasm"] });
  return {
    features: async (pixels) => {
      const { features } = await session.run({ images: new Tensor("float32", Float32Array.from(pixels), [1, ...held.shape]) });
      return features.data;
    },
  };
})().catch((error) => {
  document.getElementById("note").textContent = `This browser cannot run the network: ${error.message}`;
  throw error;
});
