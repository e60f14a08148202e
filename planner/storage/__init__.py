"""Store the arrays of rows: in a local folder, or in a bucket with the folder as its cache."""
