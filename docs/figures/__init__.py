"""The pictures of the pages, drawn from small runs: `python -m docs.figures`."""
