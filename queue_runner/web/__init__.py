"""`mpsq web`: the queue in a browser, on this machine alone. Nothing here is imported by a worker.

`app.make_site` puts the parts together. `security` decides who may ask before a page sees the request. `views` turns
the answers of monitor/ and reports/ into the values of a template (pages/templates/web/). `live` and `log_page` send
changes, `actions` lets control/ do what a form requests, `serve` is the server, and `__main__` its program. Nothing
here reads the store in its own way.
"""

import signal

from queue_runner.extensions import AddedCommand, Extension

HOST = "127.0.0.1"
"""The only address: whoever needs it from elsewhere makes a tunnel, which asks for a key or a password."""
CONNECTIONS = 64
ENDS = (signal.SIGINT, signal.SIGTERM)
"""What ends the server."""

EXTENSION = Extension(
    commands={"web": AddedCommand("Look", "the queue in a browser", "queue_runner.web.web_command")},
)
