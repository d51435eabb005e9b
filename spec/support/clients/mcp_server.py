"""An MCP server made with the protocol's own SDK.

usage: mcp_server.py stdio | json PORT | events PORT
"""

import sys

from mcp.server.mcpserver import Context, MCPServer

server = MCPServer("reference", instructions="Be kind.")


@server.tool()
def add(a: int, b: int) -> int:
    """Adds two numbers"""
    return a + b


@server.tool(structured_output=False)
async def say(text: str, context: Context) -> str:
    """Says it again"""
    await context.info("about to speak")
    await context.report_progress(1, 2)
    return text


@server.tool()
def broken() -> str:
    """Fails"""
    raise ValueError("no luck")


if sys.argv[1] == "stdio":
    server.run("stdio")
else:
    server.run("streamable-http", port=int(sys.argv[2]), json_response=sys.argv[1] == "json")
