"""One self-contained HTML page from one or more results folders."""
