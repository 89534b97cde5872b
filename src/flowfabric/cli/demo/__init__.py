"""`ff demo`: a shop whose worker dies in the middle, a flow, and a proof of what became of it."""
