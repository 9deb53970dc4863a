//! Where zones meet the processes that use them. Each step of shared memory passes here, so that a
//! model of several processes may stop or kill one between any two. It is compiled only in tests of
//! this crate, and of crates above it that enable `processes`.

#[cfg(not(any(test, feature = "processes")))]
pub(crate) use real::*;

#[cfg(any(test, feature = "processes"))]
pub(crate) use weir_testkit::processes::seam::*;

#[cfg(not(any(test, feature = "processes")))]
mod real {
    use std::sync::atomic::AtomicU64;
    use std::sync::atomic::Ordering::Relaxed;

    /// Called before a word changes. False if the process that would change it is dead.
    #[inline(always)]
    pub(crate) fn step() -> bool {
        true
    }

    /// Whether this process has not used the zone before. Each process remembers which process used
    /// it last.
    #[inline(always)]
    pub(crate) fn enters(entered: &AtomicU64, this: u64) -> bool {
        entered.swap(this, Relaxed) != this
    }

    /// This process, if it is simulated.
    #[inline(always)]
    pub(crate) fn this() -> Option<u64> {
        None
    }

    /// Whether a simulated process lives. None outside of a simulation.
    #[inline(always)]
    pub(crate) fn is_alive(_: u64) -> Option<bool> {
        None
    }

    /// Lets other simulated processes run. False outside of a simulation.
    #[inline(always)]
    pub(crate) fn rest() -> bool {
        false
    }
}
