"""Charts of a page: numbers -> text of an SVG or of a small table."""
