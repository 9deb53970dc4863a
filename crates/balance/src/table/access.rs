//! The accesses to words of the table. A model of several processes may stop or kill a process
//! before any of them ([`seam`]).

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{self, SeqCst};

use crate::seam;

/// Changes a shared word. None if the model has killed this process.
#[inline(always)]
pub(super) fn change<T>(how: impl FnOnce() -> T) -> Option<T> {
    seam::step().then(how)
}

#[inline(always)]
pub(super) fn put(word: &AtomicU64, value: u64, order: Ordering) {
    change(|| word.store(value, order));
}

#[inline(always)]
pub(super) fn get(word: &AtomicU64) -> u64 {
    get_in(word, SeqCst)
}

#[inline(always)]
pub(super) fn get_in(word: &AtomicU64, order: Ordering) -> u64 {
    seam::look();
    word.load(order)
}
