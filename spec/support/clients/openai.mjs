// Asks a server with the openai package of npm. usage: node openai.mjs PACKAGE_DIRECTORY BASE_URL
import assert from "node:assert/strict";
import { createRequire } from "node:module";

const [, , directory, base] = process.argv;
const { OpenAI } = createRequire(directory + "/")("openai");
const client = new OpenAI({ baseURL: base + "/v1", apiKey: "none", maxRetries: 0 });
const settings = { model: "llm", messages: [{ role: "user", content: "hi" }], max_tokens: 6, temperature: 0 };

const names = [];
for await (const model of client.models.list()) names.push(model.id);
assert.equal(names[0], "llm");

const answer = await client.chat.completions.create(settings);
let text = "";
let usage;
for await (const chunk of await client.chat.completions.create({ ...settings, stream: true, stream_options: { include_usage: true } })) {
  text += chunk.choices[0]?.delta?.content ?? "";
  usage = chunk.usage ?? usage;
}
assert.equal(text, answer.choices[0].message.content);
assert.equal(usage.completion_tokens, 6);

const { data } = await client.embeddings.create({ model: "embedder", input: ["a dog"], dimensions: 4 });
assert.equal(data[0].embedding.length, 4);
await assert.rejects(client.chat.completions.create({ ...settings, model: "none" }), { status: 404 });
console.log("ok");
