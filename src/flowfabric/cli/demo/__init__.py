"""`ff demo`: a small shop whose worker dies in the middle, and a proof that nothing was lost."""
