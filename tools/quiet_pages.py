"""A Sphinx extension: leave out of each page what it would load from another host or declare twice.

Jupyter Book puts the start of Thebe, live code from another host, on every page, and twice, which browsers report as an
error. The book does not use it.
"""


def drop_thebe(app, page, template, context, doctree):
    """Keep a page's scripts but those of Thebe."""
    if "script_files" in context:
        context["script_files"] = [
            script
            for script in context["script_files"]
            if "thebe" not in str(getattr(script, "filename", script)) and "THEBE" not in str(getattr(script, "attributes", {}))
        ]


def setup(app):
    """Register with Sphinx, behind every extension that adds scripts."""
    app.connect("html-page-context", drop_thebe, priority=900)
    return {"version": "1", "parallel_read_safe": True}
