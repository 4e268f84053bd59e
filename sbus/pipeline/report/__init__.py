"""The report: one page about a recording, with plots, that needs no network.

| what | where |
|---|---|
| which jobs are run, and how much of their results is kept | `facts.py` |
| plots | `figures.py` |
| the page: its sections, sentences and tables | `page.py`, `templates/` |
"""
