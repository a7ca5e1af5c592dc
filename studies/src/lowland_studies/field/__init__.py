"""The field's other claims: a file or a folder for each study, called by its name.

A file has its ``STUDY``. A folder has it in ``study``, and what its runs compute in ``trial``:
functions of settings and a seed that return numbers.
"""
