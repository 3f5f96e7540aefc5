"""What may be passed: arguments brought to arrays, and checked against the documents' tables."""
