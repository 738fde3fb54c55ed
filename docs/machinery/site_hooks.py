"""What MkDocs calls while it builds the site (mkdocs.yml, `hooks`)."""

import re
import shutil
from pathlib import Path
from typing import Any

import notebook_pages
import outside
import preset_pages
import reference_pages
import site_nav
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import Files
from mkdocs.structure.pages import Page

FETCHED = r"https://(?:unpkg\.com|api\.github\.com)/[\w@./-]*"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages that are no files of docs/, and spells out the navigation."""
    for page in [*reference_pages.pages(), *preset_pages.pages(), *notebook_pages.pages()]:
        files.append(page.file(config))
    outside.add(files, config)
    config.nav = site_nav.spelled_out(config.nav, files)
    return files


def on_page_markdown(markdown: str, page: Page, files: Files, **_: Any) -> str:
    """What a page says in the site: a preset's page goes on, and links lead to pages of the site."""
    return outside.redirected(preset_pages.continued(markdown, page), page, files)


def on_post_build(config: MkDocsConfig) -> None:
    """Takes the addresses out of the theme's script that it might fetch from (diagrams, a polyfill, counters), and what
    no page reads: word stems of other languages, maps from the packed scripts to their sources.
    """
    assets = Path(config["site_dir"], "assets")
    for script in assets.glob("javascripts/bundle.*.js"):
        text = script.read_text(encoding="utf-8")
        script.write_text(re.sub(FETCHED, "about:blank", text), encoding="utf-8")
    shutil.rmtree(assets / "javascripts" / "lunr", ignore_errors=True)
    for unread in assets.rglob("*.map"):
        unread.unlink()
