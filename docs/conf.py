"""Sphinx configuration.

``make docs`` builds the pages. Notebooks are shown as they are stored; set FA_NUMBA_DOCS_EXECUTE=1
to execute them during the build, so that their figures appear.
"""

import os
import shutil
import sys
from pathlib import Path

DOCS = Path(__file__).parent
ROOT = DOCS.parent
sys.path.insert(0, str(DOCS / "_ext"))
sys.path.insert(0, str(ROOT))

import fa_numba  # noqa: E402, the paths come first

project = "fa_numba"
author = "The fa_numba developers"
copyright = author
release = fa_numba.__version__
version = release

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx.ext.mathjax",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "myst_nb",
    "device_tables",
    "glossary_page",
]
exclude_patterns = ["_build", "_ext", "jupyter_execute"]

# ------------------------------------------------------------------------------------------ MyST
myst_enable_extensions = ["attrs_inline", "colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3
nb_execution_mode = "cache" if os.environ.get("FA_NUMBA_DOCS_EXECUTE") == "1" else "off"
nb_execution_timeout = 300
nb_execution_raise_on_error = True

# --------------------------------------------------------------------------------------- autodoc
default_role = "code"  # single backticks in docstrings name things
autodoc_typehints = "none"  # the docstrings say more than the annotations: shapes, units, ranges
autodoc_member_order = "bysource"
autosummary_generate = False
napoleon_google_docstring = False
napoleon_numpy_docstring = True
napoleon_use_rtype = False
napoleon_use_param = False  # types are prose here ("ndarray of uint8"), not links
napoleon_use_ivar = True  # attributes as fields: the class body need not document them twice

# ------------------------------------------------------------------------------------------ HTML
html_theme = "pydata_sphinx_theme"
html_title = "fa_numba"
html_show_sourcelink = False
html_theme_options = {
    "navigation_with_keys": False,
    "secondary_sidebar_items": ["page-toc"],
    "show_toc_level": 2,
}
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True


def copy_notebooks(target: Path) -> None:
    """Copy the notebooks and their syllabus below the source folder, where Sphinx finds pages."""
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir()
    for page in (ROOT / "notebooks").glob("*"):
        if page.suffix in (".ipynb", ".md"):
            shutil.copy(page, target)


copy_notebooks(DOCS / "notebooks")
