"""A fleet as a Kubernetes API server tells of it: reading its objects, editing their specs, and showing both.

Everything that is done is an edit of a spec, which Git could hold as well: there is no second way to the operator.
"""
