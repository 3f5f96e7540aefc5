"""The specifications' formulas, as functions of arrays that know nothing of operators."""
