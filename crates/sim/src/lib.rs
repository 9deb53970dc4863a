//! The simulated world lives in `tests/world`: only tests may put it in the kernel's place.
//!
//! `just sim SEED` runs one of its courses, `just sim-many N` many.
