"""`mpsq mcp`: the queue as tools of the Model Context Protocol, over stdin and stdout alone.

`tools` has one function for each tool, built on the Python API; `mcp_command` starts the server.
"""

from queue_runner.extensions import AddedCommand, Extension

EXTENSION = Extension(
    commands={"mcp": AddedCommand("Set up", "serve AI assistants", "queue_runner.mcp.mcp_command")},
)
