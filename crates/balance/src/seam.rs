//! Where the table meets the processes that use it: each access to a word comes by here, so that a model of several
//! processes may stop or kill one between any two. Outside of tests, of this room and of those above it that ask for
//! `processes`, nothing of it is compiled.

#[cfg(not(any(test, feature = "processes")))]
pub(crate) use real::*;

#[cfg(any(test, feature = "processes"))]
pub(crate) use weir_testkit::processes::seam::{free_step as step, look};

#[cfg(not(any(test, feature = "processes")))]
mod real {
    /// A word is about to change: false if the process that wants that is dead.
    #[inline(always)]
    pub(crate) fn step() -> bool {
        true
    }

    /// A word is about to be read.
    #[inline(always)]
    pub(crate) fn look() {}
}
