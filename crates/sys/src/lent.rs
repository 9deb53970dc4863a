//! Values that are borrowed for an unlimited time and still freed.
//!
//! Each request borrows the server's configuration, in many places and across awaits, and must not
//! count a reference for each of them. So it is borrowed as `&'static`. It is freed when the last
//! [`Lent`] is dropped.
//!
//! The compiler does not check that no reference is used after that. Only this module makes that
//! promise. Code that calls [`Lent::get`] must follow these rules:
//!
//! 1. A task or value uses the reference, and everything reached through it, only while it also
//!    holds the `Lent` or its owner.
//! 2. The last `Lent` of a thread goes to [`retire`](Graveyard::retire), and [`Graveyard::empty`]
//!    drops it between two turns of the thread's loop. So code that does not wait may use a
//!    reference until it returns, whatever it drops.
//! 3. What another thread, a `static` or a thread-local keeps longer than a turn holds its own
//!    `Arc`.

use std::cell::RefCell;
use std::sync::Arc;

/// An owner of a value that is borrowed as `&'static`.
#[derive(Debug)]
pub struct Lent<T: 'static>(Arc<T>);

impl<T> Clone for Lent<T> {
    fn clone(&self) -> Self {
        Lent(Arc::clone(&self.0))
    }
}

impl<T: Send + Sync> Lent<T> {
    /// Another owner of the value.
    pub fn new(value: Arc<T>) -> Lent<T> {
        Lent(value)
    }

    /// Borrows the value. By the rules of the [module](self), the reference is valid while an owner
    /// exists.
    pub fn get(&self) -> &'static T {
        // SAFETY: the value stays where it is until the last owner is dropped. That no reference is used afterwards is the callers'
        // part, by the rules of the module: each task, value and request with such a reference holds an owner, and the last
        // owner of a thread waits in its graveyard until nothing runs that could have borrowed from it.
        unsafe { &*Arc::as_ptr(&self.0) }
    }

    /// The value, for code that owns it itself.
    pub fn shared(&self) -> &Arc<T> {
        &self.0
    }
}

/// Owners that a thread no longer needs. They are kept until the end of its turn.
#[derive(Debug)]
pub struct Graveyard<T: 'static>(RefCell<Vec<Lent<T>>>);

impl<T> Graveyard<T> {
    /// An empty graveyard.
    pub const fn new() -> Graveyard<T> {
        Graveyard(RefCell::new(Vec::new()))
    }

    /// Keeps an owner until the end of the turn.
    pub fn retire(&self, owner: Lent<T>) {
        self.0.borrow_mut().push(owner);
    }

    /// Returns the owners. Called between two turns. The caller drops them where that delays no
    /// request.
    pub fn empty(&self) -> Vec<Lent<T>> {
        if self.0.borrow().is_empty() {
            return Vec::new();
        }
        self.0.take()
    }
}

/// A thread that ends frees nothing. Its loop ends with the process, and later destructors may
/// still borrow.
impl<T> Drop for Graveyard<T> {
    fn drop(&mut self) {
        std::mem::forget(self.0.take());
    }
}

impl<T> Default for Graveyard<T> {
    fn default() -> Self {
        Graveyard::new()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    struct Noted(Arc<AtomicBool>, u32);

    impl Drop for Noted {
        fn drop(&mut self) {
            self.0.store(true, Ordering::SeqCst);
        }
    }

    #[test]
    fn a_value_is_freed_with_its_last_owner_and_not_before() {
        let freed = Arc::new(AtomicBool::new(false));
        let first = Lent::new(Arc::new(Noted(freed.clone(), 7)));
        let (second, value) = (first.clone(), first.get());
        drop(first);
        assert_eq!(value.1, 7);
        let graveyard = Graveyard::new();
        graveyard.retire(second);
        assert!(!freed.load(Ordering::SeqCst) && value.1 == 7);
        let gone = graveyard.empty();
        assert!(!freed.load(Ordering::SeqCst));
        std::thread::spawn(move || drop(gone)).join().unwrap();
        assert!(freed.load(Ordering::SeqCst));
    }
}
