"""Pages for a browser: `mpsq report --html`, and the pages of `mpsq web`, from the same templates.

`render.page(template, **values)` renders a template of `templates/`. Each extends `base.html.j2`, fills its blocks
(`title`, `main`, and where it needs them `nav`, `head`, `data` and `footer`), and names its files of `static/` at its
top: `{% set scripts = ["uPlot/uPlot.iife.min.js"] %}`, `{% set styles = ["style.css"] %}` (the default).
`macros.html.j2` has the parts that pages share. By default a page is one file that requests nothing: styles and
scripts are in it, and a Content-Security-Policy in its head admits those alone, by their hashes.

`mpsq web` passes `static="/static"`: styles and scripts are then links into the folder `render.STATIC`, which it serves
with the header `render.WEB_POLICY`. Data for a script goes into the block `data`, by `{{ m.data("runs", value) }}`,
never into code.

Every value is hostile: it is escaped by Jinja2, loses terminal escapes and control characters (NUL, bidirectional
overrides), and a value for a script is JSON without `<`, `>`, `&` and without line separators.
"""

from queue_runner.extensions import AddedOption, Extension

EXTENSION = Extension(
    options=[
        AddedOption(
            command,
            "--html",
            "FILE",
            "Write one page for a browser: tables, verdict, charts of the runs, how to repeat it; works offline.",
            "queue_runner.pages.html_option:write_page",
        )
        for command in ("report", "compare")
    ],
)
