"""What random histories are made of: strategies for orders, asks, leases, times. Needs Hypothesis.

Numbers are few and chosen to meet: a lease, an attempt and a deadline that end in the same
millisecond, a pause of nothing, a cap of nothing.
"""
