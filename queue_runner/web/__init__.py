"""`mpsq web`: the queue in a browser, on this machine alone. Nothing here is imported by a worker.

`app.make_app` puts together: `security` decides who may ask before a page sees the request, `views` turns what monitor/
and reports/ return into the values of a template (pages/templates/web/), `live` and `logs` send what changes, `actions`
lets control/ do what a form asks for, and `serve` is the server. Nothing here reads the store in a way of its own.
"""
