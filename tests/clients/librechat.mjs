// Asked as LibreChat asks a custom endpoint: two questions of one conversation, its title, a question whose first draft is
// rejected, one that fails, and one with an image. With a second argument that question is asked, and nothing else.
import { GraphEvents, ModelEndHandler, Providers, Run, createContentAggregator } from '@librechat/agents';
import { AIMessage, HumanMessage } from '@librechat/agents/langchain/messages';

const baseURL = process.argv[2];

async function ask(conversation, messages) {
  const { contentParts, aggregateContent } = createContentAggregator();
  const used = [];
  let pieces = 0;
  const collect = (event) => ({
    handle: (_name, data) => {
      pieces += event === GraphEvents.ON_MESSAGE_DELTA ? 1 : 0;
      aggregateContent({ event, data });
    },
  });
  const collected = [GraphEvents.ON_RUN_STEP, GraphEvents.ON_RUN_STEP_DELTA, GraphEvents.ON_MESSAGE_DELTA];
  const run = await Run.create({
    runId: crypto.randomUUID(),
    graphConfig: {
      type: 'standard',
      instructions: 'Be brief.',
      llmConfig: {
        provider: Providers.OPENAI,
        model: 'helix',
        apiKey: 'none',
        user: 'user-1',
        streaming: true,
        streamUsage: true,
        maxRetries: 0,
        configuration: { baseURL, defaultHeaders: { 'X-Conversation-ID': conversation } },
      },
    },
    returnContent: true,
    customHandlers: {
      [GraphEvents.CHAT_MODEL_END]: new ModelEndHandler(used),
      ...Object.fromEntries(collected.map((event) => [event, collect(event)])),
    },
  });
  let error = '';
  try {
    const config = { configurable: { thread_id: conversation }, streamMode: 'values', version: 'v2' };
    await run.processStream({ messages }, config);
  } catch (raised) {
    error = String(raised.code ?? raised.message);
  }
  const text = contentParts.filter((part) => part?.type === 'text').map((part) => part.text).join('');
  return { run, contentParts, seen: { text, used: used.map((usage) => usage.total_tokens), pieces, error } };
}

// As titleConvo: true asks for it, with LibreChat's default titleMethod.
function title({ run, contentParts }, inputText) {
  const clientOptions = { model: 'helix', apiKey: 'none', maxRetries: 0, configuration: { baseURL } };
  return run.generateTitle({ provider: Providers.OPENAI, titleMethod: 'completion', inputText, contentParts, clientOptions });
}

if (process.argv[3]) {
  const only = await ask('chat-4', [new HumanMessage(process.argv[3])]);
  console.log(JSON.stringify(only.seen));
  process.exit(0);
}
const question = new HumanMessage('two attempts');
const first = await ask('chat-1', [question]);
const named = await title(first, 'two attempts');
const second = await ask('chat-1', [question, new AIMessage(first.seen.text), new HumanMessage('two attempts, again')]);
const drafted = await ask('chat-3', [new HumanMessage('two drafts')]);
const failed = await ask('chat-2', [new HumanMessage('never ends')]);
const picture = { type: 'image_url', image_url: { url: process.env.IMAGE } };
const image = await ask('chat-5', [new HumanMessage({ content: [{ type: 'text', text: 'What is this?' }, picture] })]);
const [draft, refused] = [drafted.seen.text, image.seen.error];
console.log(JSON.stringify({ title: named.title, first: first.seen, second: second.seen, draft, failed: failed.seen, refused }));
process.exit(0);
