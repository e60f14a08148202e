"""Write a run as a report for decision makers: HTML, PDF and XLSX with the same content."""
