"""Arrays in `.tsv` files: read like csv files, and written with tabs."""

from functools import partial

from calibrant.files import csv_files
from calibrant.files.csv_files import columns, names, read, read_optional, rewrite

__all__ = ["columns", "names", "read", "read_optional", "rewrite", "write"]

write = partial(csv_files.write, delimiter="\t")
