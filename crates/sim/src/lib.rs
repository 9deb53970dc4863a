//! The simulated world is in `tests/world`: only tests may replace the kernel by it.
//!
//! `just sim SEED` runs one of its courses, `just sim-many N` many.
