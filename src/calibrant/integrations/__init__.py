"""Faces for other libraries: each thin, each optional."""
