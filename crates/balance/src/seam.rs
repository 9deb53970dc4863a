//! The accesses to words of the table. A model of several processes may stop or kill a process
//! before any of them. It is compiled for tests of this crate, and for crates that ask for the
//! feature `processes`.

#[cfg(not(any(test, feature = "processes")))]
pub(crate) use real::*;

#[cfg(any(test, feature = "processes"))]
pub(crate) use weir_testkit::processes::seam::{free_step as step, look};

#[cfg(not(any(test, feature = "processes")))]
mod real {
    /// Called before a word changes. False if the process that would change it is dead.
    #[inline(always)]
    pub(crate) fn step() -> bool {
        true
    }

    /// Called before a word is read.
    #[inline(always)]
    pub(crate) fn look() {}
}
