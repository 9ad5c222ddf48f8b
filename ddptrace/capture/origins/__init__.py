"""Who asks for a collective: the line of the program, the library between it and torch, the module.

In: a Python frame or a node of autograd. Out: a `Source` of string ids for an ORIGIN record, names of modules.
"""
