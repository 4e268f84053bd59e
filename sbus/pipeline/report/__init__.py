"""The report: one page about a recording, with plots, that needs no network."""
