// node ask.mjs URL: what ask.py does, with OpenAI's client for Node.
import OpenAI from 'openai';
const client = new OpenAI({baseURL: process.argv[2], apiKey: 'none', maxRetries: 0});
const schema = {
  type: 'object', properties: {city: {type: 'string'}, people: {type: 'integer'}},
  required: ['city', 'people'], additionalProperties: false,
};
const form = {type: 'json_schema', json_schema: {name: 'City', schema, strict: true}};
const ask = (content, more = {}) =>
  client.chat.completions.create({model: 'helix', messages: [{role: 'user', content}], ...more});
const message = async (...asked) => (await ask(...asked)).choices[0].message;
const features = {
  answer: async () => (await message('two attempts')).content,
  stream: async () => {
    let text = '';
    for await (const chunk of await ask('two attempts', {stream: true})) text += chunk.choices[0]?.delta?.content ?? '';
    return text;
  },
  usage: async () => (await ask('two attempts')).usage.total_tokens,
  schema: async () => JSON.stringify(JSON.parse((await message('a wrong field', {response_format: form})).content)),
  json_object: async () =>
    JSON.stringify(JSON.parse((await message('a fence', {response_format: {type: 'json_object'}})).content)),
  refusal: async () => (await message('refuse it', {response_format: form})).refusal,
  'no answer': async () => (await message('never right', {response_format: form})).content,
  'tool call': async () =>
    message('a wrong field', {tools: [{type: 'function', function: {name: 'City', parameters: schema}}]}),
};
const told = {};
for (const [name, feature] of Object.entries(features)) {
  try {
    told[name] = {error: '', said: String(await feature())};
  } catch (error) {
    told[name] = {error: error.constructor.name, said: error.message};
  }
}
console.log(JSON.stringify(told));
