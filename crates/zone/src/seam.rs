//! Where zones meet the processes that use them: each step of shared memory comes by here, so that a model of several
//! processes may stop or kill one between any two. Outside of this room's own tests nothing of it is compiled.

#[cfg(not(test))]
pub(crate) use real::*;

#[cfg(test)]
pub(crate) use crate::processes::seam::*;

#[cfg(not(test))]
mod real {
    /// A word is about to change: false if whoever wants that is dead.
    #[inline(always)]
    pub(crate) fn step() -> bool {
        true
    }

    /// This process, if it is a model's.
    #[inline(always)]
    pub(crate) fn this() -> Option<u64> {
        None
    }

    /// Whether a process of the model lives.
    #[inline(always)]
    pub(crate) fn is_alive(_: u64) -> Option<bool> {
        None
    }

    /// Others of the model go on; false if there is none.
    #[inline(always)]
    pub(crate) fn rest() -> bool {
        false
    }
}
