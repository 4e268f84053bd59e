"""The report: one page about a recording, with plots, that needs no network.

| what | where |
|---|---|
| which questions are asked, and how much of the answers is kept | `facts.py` |
| one section after the other | `sections.py` |
| plots | `figures.py`, and in the browser `plots.js` |
| tables, tiles, escaping | `markup.py` |
| the page around all this | `page.py`, `style.css` |
"""
