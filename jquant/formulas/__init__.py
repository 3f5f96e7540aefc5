"""What is computed: the formulas of the documents, as functions of arrays that know no operator."""
