//! Where the table meets the processes that use it: each change of a word comes by here, so that a model of several
//! processes may stop or kill one between any two. Outside of this room's own tests nothing of it is compiled.

#[cfg(not(test))]
pub(crate) use real::*;

#[cfg(test)]
pub(crate) use weir_testkit::processes::seam::step;

#[cfg(not(test))]
mod real {
    /// A word is about to change: false if whoever wants that is dead.
    #[inline(always)]
    pub(crate) fn step() -> bool {
        true
    }
}
