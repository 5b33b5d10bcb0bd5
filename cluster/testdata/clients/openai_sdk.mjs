// Chats through OpenAI's own client for Node, streamed, and prints what it saw as JSON.
//
//     node openai_sdk.mjs URL MODEL REQUESTS TOKENS     (in a folder with node_modules/openai)
import { createRequire } from "node:module";
import { join } from "node:path";

const OpenAI = createRequire(join(process.cwd(), "x.js"))("openai");
const [url, model, requests, tokens] = process.argv.slice(2);
const client = new OpenAI({ baseURL: url + "/v1", apiKey: "none", maxRetries: 0 });
const listed = (await client.models.list()).data[0].id;
const asked = (await client.models.retrieve(model)).id;
if (listed !== model || asked !== model) throw new Error(`models ${listed}, ${asked}`);

const seen = { completed: 0, input: 0, output: 0 };
const ttft = [], itl = [], e2e = [];
for (let i = 0; i < Number(requests); i++) {
  const sent = performance.now();
  let first, last;
  const stream = await client.chat.completions.create({
    model,
    messages: [{ role: "user", content: `Tell me about ferry ${i}` }],
    max_tokens: Number(tokens),
    stream: true,
    stream_options: { include_usage: true },
    ignore_eos: true,
  });
  for await (const chunk of stream) {
    const now = performance.now();
    if (chunk.usage) {
      seen.input += chunk.usage.prompt_tokens;
      seen.output += chunk.usage.completion_tokens;
    }
    if (chunk.choices.length && chunk.choices[0].delta.content) {
      if (first === undefined) ttft.push((first = now) - sent);
      else itl.push(now - last);
      last = now;
    }
  }
  e2e.push(last - sent);
  seen.completed++;
}
const mean = (values) => values.reduce((a, b) => a + b, 0) / values.length / 1000;
console.log(JSON.stringify({ ...seen, ttft: mean(ttft), itl: mean(itl), e2e: mean(e2e) }));
