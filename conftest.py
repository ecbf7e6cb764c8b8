"""What every test shares: strict JAX, shapes checked, and notebooks compared by their numbers."""

from collections import defaultdict

from jaxtyping import install_import_hook

# Each annotated function of the package has its shapes and types checked while the tests run.
install_import_hook("annotated_s4", "beartype.beartype")

import jax  # noqa: E402

jax.config.update("jax_numpy_rank_promotion", "raise")

# What a notebook shows and nbval does not compare: pictures and pages differ from one version of a library to the
# next, and warnings come and go. Numbers are printed as text, and text is compared.
NOT_COMPARED = ("image/png", "text/html", "stderr", "metadata")


def pytest_collectstart(collector):
    """Tell nbval what not to compare."""
    if hasattr(collector, "skip_compare"):
        collector.skip_compare += NOT_COMPARED


def pytest_terminal_summary(terminalreporter):
    """Print how long each chapter took."""
    seconds = defaultdict(float)
    for reports in terminalreporter.stats.values():
        for report in reports:
            path = getattr(report, "nodeid", "").split("::")[0]
            if path.endswith(".ipynb"):
                seconds[path] += report.duration
    if seconds:
        terminalreporter.section("time of each chapter")
        for path, duration in sorted(seconds.items()):
            terminalreporter.line(f"{duration:6.1f} s  {path}")
