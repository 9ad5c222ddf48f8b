"""Units: what one decision of the program communicates together, such as the parameters of one `fully_shard`.

In: calls of the libraries that group communication. Out: UNIT, UNIT_CALL and UNIT_MARK records.
"""
