// Drives a running server with the official Node package. Usage: node openai_clients.mjs PORT

import assert from "node:assert/strict";
import OpenAI from "openai";
import { VERSION } from "openai/version";

const client = new OpenAI({ baseURL: `http://127.0.0.1:${process.argv[2]}/v1`, apiKey: "unused", maxRetries: 0 });
const messages = [{ role: "user", content: "What is the capital of Spain?" }];
const MADRID = "The capital of Spain is Madrid.";
const RAW =
  "<|im_start|>user\nWhat is the capital of Spain?<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n";

const ask = (changes = {}, options = {}) =>
  client.chat.completions.create(
    { model: "pip", messages, temperature: 0, chat_template_kwargs: { enable_thinking: false }, ...changes }, options);

const gather = async (stream) => {
  const chunks = [];
  for await (const chunk of stream) chunks.push(chunk);
  return chunks;
};

const checks = {
  async models() {
    const ids = [];
    for await (const model of client.models.list()) ids.push(model.id);
    assert.deepEqual(ids, ["pip"]);
    assert.equal((await client.models.retrieve("pip")).object, "model");
  },

  async whole() {
    const answer = await ask();
    assert.equal(answer.choices[0].message.content, MADRID);
    assert.equal(answer.choices[0].finish_reason, "stop");
    assert.equal(answer.usage.total_tokens, answer.usage.prompt_tokens + 9);
    assert.ok(answer._request_id);
  },

  async streamed() {
    const chunks = await gather(await ask({ stream: true, stream_options: { include_usage: true } }));
    const last = chunks.pop();
    assert.deepEqual(last.choices, []);
    assert.equal(last.usage.completion_tokens, 9);
    assert.equal(chunks[0].choices[0].delta.role, "assistant");
    assert.equal(chunks.map((chunk) => chunk.choices[0].delta.content ?? "").join(""), MADRID);
    assert.equal(chunks.at(-1).choices[0].finish_reason, "stop");
    assert.ok(chunks.every((chunk) => chunk.usage === null));
    assert.ok((await gather(await ask({ stream: true }))).every((chunk) => chunk.choices.length === 1));
  },

  async streamHelper() {
    const stream = client.chat.completions.stream(
      { model: "pip", messages, temperature: 0, chat_template_kwargs: { enable_thinking: false } });
    assert.equal(await stream.finalContent(), MADRID);
  },

  async thinking() {
    const { message } = (await ask({ chat_template_kwargs: undefined })).choices[0];
    assert.equal(message.content, MADRID);
    assert.match(message.reasoning_content, /Madrid\.$/);
    const chunks = await gather(await ask({ chat_template_kwargs: undefined, stream: true }));
    const thoughts = chunks.map((chunk) => chunk.choices[0].delta.reasoning_content ?? "").join("");
    assert.equal(thoughts, message.reasoning_content);
  },

  async stops() {
    assert.equal((await ask({ stop: ["drid"] })).choices[0].message.content, "The capital of Spain is Ma");
    const cut = (await ask({ max_completion_tokens: 2 })).choices[0];
    assert.deepEqual([cut.message.content, cut.finish_reason], ["The capital", "length"]);
  },

  async completions() {
    const request = { model: "pip", prompt: RAW, temperature: 0 };
    assert.equal((await client.completions.create(request)).choices[0].text, MADRID);
    const chunks = await gather(await client.completions.create({ ...request, stream: true }));
    assert.equal(chunks.map((chunk) => chunk.choices[0].text).join(""), MADRID);
  },

  async errors() {
    const refused = async (kind, param, changes) => {
      for (const stream of [false, true]) {
        const attempt = async () => { await gather(await ask({ ...changes, stream })); };
        await assert.rejects(attempt, (error) => {
          assert.ok(error instanceof kind, String(error));
          assert.equal(error.param, param);
          assert.ok(error.requestID);
          return true;
        });
      }
    };
    await refused(OpenAI.BadRequestError, "temperature", { temperature: -1 });
    await refused(OpenAI.BadRequestError, "stop", { stop: [""] });
    await refused(OpenAI.BadRequestError, "unheard_of", { unheard_of: 1 });
    await refused(OpenAI.BadRequestError, "tools", { tools: [{ type: "function", function: { name: "f" } }] });
    await refused(OpenAI.NotFoundError, "model", { model: "gpt-4o" });
  },

  async cancel() {
    const endless = { max_tokens: 4000, logit_bias: { 6111: -100, 6113: -100 } };
    const stream = await ask({ ...endless, stream: true });
    let seen = 0;
    for await (const _ of stream) if (++seen === 3) break;
    const start = performance.now();
    assert.equal((await ask()).choices[0].message.content, MADRID);
    await assert.rejects(ask(endless, { timeout: 1000 }), OpenAI.APIConnectionTimeoutError);
    assert.equal((await ask()).choices[0].message.content, MADRID);
    const seconds = ((performance.now() - start) / 1000).toFixed(1);
    console.log(`  answered ${seconds} s after the first of two cancelled answers`);
  },
};

for (const [name, check] of Object.entries(checks)) {
  await check();
  console.log(`node ${VERSION}: ${name} ok`);
}
