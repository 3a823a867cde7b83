"""A pydantic-ai agent as a turn: ``HELIX_MODELS="library=docs.examples.agents.with_pydantic_ai:librarian:gpt-5.1"``."""

from pydantic_ai import Agent


async def librarian(context):
    agent = Agent(f"openai-chat:{context.model}", instructions="You know every book.")
    async with agent.run_stream(context.prompt) as answer:
        async for piece in answer.stream_text(delta=True):
            yield piece
    context.usage(input_tokens=answer.usage.input_tokens, output_tokens=answer.usage.output_tokens)
