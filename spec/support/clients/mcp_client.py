"""Uses the tools of an MCP server over stdio with the protocol's own SDK, and fails where they are not as expected.

usage: mcp_client.py COMMAND ARGUMENTS...
"""

import asyncio
import sys

from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.shared.exceptions import MCPError


async def main(command, arguments):
    transport = stdio_client(StdioServerParameters(command=command, args=arguments))
    async with Client(transport) as client:
        assert client.server_info.name == "red-candle", client.server_info
        assert client.protocol_version == "2025-11-25", client.protocol_version
        await client.send_ping()
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert list(tools) == ["embed", "rerank", "extract", "chat"], tools

        embedded = await client.call_tool("embed", {"texts": ["a fox", "a dog"]})
        assert not embedded.is_error and len(embedded.structured_content["embeddings"]) == 2, embedded
        ranked = await client.call_tool("rerank", {"query": "a dog", "documents": ["x", "a dog"], "top_k": 1})
        assert len(ranked.structured_content["results"]) == 1, ranked
        text = "the lazy dog jumps over the quick brown fox"
        found = (await client.call_tool("extract", {"text": text, "threshold": 0})).structured_content["entities"]
        assert found and all(text[entity["start"]:entity["end"]] == entity["text"] for entity in found), found
        answers = await asyncio.gather(*(client.call_tool("chat", {"messages": [{"role": "user", "content": "hi"}],
                                                                   "max_tokens": 4, "temperature": 0})
                                         for _ in range(4)))
        assert len({answer.content[0].text for answer in answers}) == 1, answers

        wrong = await client.call_tool("embed", {"texts": "a fox"})
        assert wrong.is_error and "must be of type array" in wrong.content[0].text, wrong
        try:
            await client.call_tool("unknown", {})
        except MCPError as error:
            assert error.error.code == -32602, error
        else:
            raise AssertionError("no error")


asyncio.run(main(sys.argv[1], sys.argv[2:]))
