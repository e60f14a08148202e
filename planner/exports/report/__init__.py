"""A run as a document for those who decide: HTML, PDF and a workbook of one content."""
