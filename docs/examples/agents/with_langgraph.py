"""A LangGraph graph as a turn: ``HELIX_MODELS="library=docs.examples.agents.with_langgraph:librarian:gpt-5.1"``."""

from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph


async def librarian(context):
    model = ChatOpenAI(model=context.model)
    graph = StateGraph(MessagesState)
    graph.add_node("answer", lambda state: {"messages": [model.invoke(state["messages"])]})
    graph.add_edge(START, "answer")
    said = {"messages": list(context.messages)}
    async for piece, _ in graph.compile().astream(said, stream_mode="messages"):
        yield piece.content
