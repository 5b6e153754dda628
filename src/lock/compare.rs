//! All locks side by side: what each survives, what it costs, and the test that backs each claim.
