"""The site: ``python -m sphinx -W --keep-going docs docs/site``; warnings are errors."""

from __future__ import annotations

import sys
from pathlib import Path

DOCS = Path(__file__).parent
sys.path.insert(0, str(DOCS))
import implicit_conv  # noqa: E402

project, author = "implicit_conv", "The implicit_conv developers"
copyright = author
version = release = implicit_conv.__version__
REPOSITORY = "https://github.com/implicit-conv/implicit_conv"

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "numpydoc",
    "sphinx_copybutton",
    "sphinx_design",
    "sphinx_gallery.gen_gallery",
    "site_extension",
]
exclude_patterns = ["recipes", "site"]
templates_path = ["_templates"]
suppress_warnings = ["config.cache"]  # the gallery's order is a class

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 4

autosummary_generate = True
autodoc_typehints = "none"  # types stand in the docstrings
numpydoc_show_class_members = False
numpydoc_xref_param_type = False
# What a docstring must have; a function without parameters needs none of them.
numpydoc_validation_checks = {"EX01", "PR01", "PR02", "SS03"}
numpydoc_validation_exclude = {
    r"\.[A-Z]\w*\.\w+$",  # methods
    r"Error$",
    # What users are given and do not construct: these document attributes, not parameters.
    r"\.blocks\.Block$",
    r"^implicit_conv\.Plan$",
    r"\.ptx\.(Report|SharedRead|TensorCopy)$",
    r"\.tma\.(BankReport|Finding|KernelReport|Lowering|MatrixDescriptor|SmemImage|Walk)$",
}

html_theme = "pydata_sphinx_theme"
html_title, html_favicon = "implicit_conv", "_static/favicon.svg"
html_static_path = ["_static"]
html_css_files, html_js_files = ["site.css"], ["site.js"]
html_copy_source = html_show_sourcelink = False
html_context = {"default_mode": "auto", "repository": REPOSITORY}
html_theme_options = {
    "logo": {"text": "implicit_conv"},
    "github_url": REPOSITORY,
    "header_links_before_dropdown": 9,
    "navbar_persistent": ["search-button"],
    "navbar_end": ["theme-switcher", "navbar-icon-links"],
    "collapse_navigation": True,
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": ["copyright"],
    "footer_end": [],
    "show_prev_next": True,
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
}

# What a program prints has no button, and prompts are not copied.
copybutton_selector = ".highlight-sh pre, .highlight-default pre, [class*=highlight-python i] pre"
copybutton_prompt_text, copybutton_prompt_is_regexp = r">>> |\.\.\. ", True

sphinx_gallery_conf = {
    "examples_dirs": ["recipes"],
    "gallery_dirs": ["auto_recipes"],
    "filename_pattern": r"\.py$",
    "within_subsection_order": "FileNameSortKey",
    "download_all_examples": False,
    "show_signature": False,
    "show_memory": False,
    "min_reported_time": 1e9,  # times are taken from records: the machine that builds is busy
    "abort_on_example_error": True,
    "write_computation_times": False,
}
