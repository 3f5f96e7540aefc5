"""The specifications' formulas in NumPy, step by step, which the operators must equal bit for bit.

They share no code with the operators, and are as plain as the specifications. NumPy rounds every float32 operation once.
The tests and ``python -m jquant`` compare with them.
"""
