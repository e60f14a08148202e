"""Figures of the pages: tables in, Plotly figures as plain data out."""
