# %% tags=["setup", "hide-input", "nbval-ignore-output"]
# Setup. In a clone and after `pip install` the package is found; in Colab what is missing is installed, JAX never.
import importlib.metadata
import importlib.util
import pathlib
import subprocess
import sys

REPOSITORY = ""  # the book's address and commit; written in when the book is published

if importlib.util.find_spec("annotated_s4") is None:
    here = pathlib.Path.cwd()
    clone = [folder for folder in (here, *here.parents) if (folder / "annotated_s4" / "__init__.py").exists()]
    if clone:
        sys.path.insert(0, str(clone[0]))
    elif "google.colab" in sys.modules and REPOSITORY:
        pip = [sys.executable, "-m", "pip", "install", "--quiet"]
        subprocess.run([*pip, "--no-deps", f"annotated-s4 @ git+{REPOSITORY}"], check=True)
        kept = [f"{name}=={importlib.metadata.version(name)}" for name in ("jax", "jaxlib")]
        wanted = {"flax": "flax", "optax": "optax", "jaxtyping": "jaxtyping", "sklearn": "scikit-learn"}
        missing = [package for module, package in wanted.items() if importlib.util.find_spec(module) is None]
        if missing:
            subprocess.run([*pip, *missing, *kept], check=True)
        importlib.invalidate_caches()
    else:
        raise ModuleNotFoundError(
            "annotated_s4 is not here. Clone the book's repository and open this notebook inside the clone, or run "
            "`pip install .` in the clone. (In Colab, open the notebook from the published book, which knows its address.)"
        )

from annotated_s4 import environment

environment.start(precision="float64")
