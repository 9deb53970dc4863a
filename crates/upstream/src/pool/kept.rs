//! The pools of a loop that hold idle connections. When other connections need slots, the idle ones
//! are closed.

use std::cell::RefCell;
use std::rc::{Rc, Weak};

use super::Pool;

thread_local! {
    static POOLS: RefCell<Vec<Weak<Pool>>> = const { RefCell::new(Vec::new()) };
}

/// Registers a pool of this thread's loop, which has an idle connection from now on.
pub(super) fn register(pool: &Rc<Pool>) {
    POOLS.with_borrow_mut(|pools| {
        pools.retain(|other| {
            !std::ptr::eq(other.as_ptr(), Rc::as_ptr(pool)) && other.strong_count() > 0
        });
        pools.push(Rc::downgrade(pool));
    });
}

/// Closes up to `most` idle connections of this thread's loop to servers, the one with the earliest
/// timeout first. Returns how many.
pub fn close_idle(most: usize) -> usize {
    let pools =
        POOLS.with_borrow(|pools| pools.iter().filter_map(Weak::upgrade).collect::<Vec<_>>());
    let close = || {
        let oldest = pools.iter().filter_map(|pool| Some((pool.oldest()?, pool)));
        let (_, pool) = oldest.min_by_key(|(until, _)| *until)?;
        pool.close_oldest();
        Some(())
    };
    std::iter::from_fn(close).take(most).count()
}
