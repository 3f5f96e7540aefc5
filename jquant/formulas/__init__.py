"""The specifications' formulas, as functions of arrays, independent of operators."""
