//! Values that are borrowed for as long as a program likes, and freed all the same.
//!
//! A server's configuration is borrowed by each request, in many places and across awaits, and must not cost a count for each
//! of them. So it is borrowed as `&'static`. It is freed when its last [`Lent`] is dropped.
//!
//! The compiler does not check that no reference is used after that. This module is the only place where that promise is made, and
//! these are the rules for code that calls [`Lent::get`]:
//!
//! 1. What is reached from the reference is used only while the same task, or the value that has it, also holds the `Lent` or
//!    what owns it.
//! 2. The last `Lent` of a thread is given to [`retire`](Graveyard::retire) and dropped by [`Graveyard::empty`] between two turns of the
//!    thread's loop. So code that runs without waiting may use a reference to its end, whatever it drops meanwhile.
//! 3. What another thread, a `static` or a thread-local keeps longer than a turn holds an `Arc` of its own.

use std::cell::RefCell;
use std::sync::Arc;

/// One of the owners of a value that is borrowed as `&'static`.
#[derive(Debug)]
pub struct Lent<T: 'static>(Arc<T>);

impl<T> Clone for Lent<T> {
    fn clone(&self) -> Self {
        Lent(Arc::clone(&self.0))
    }
}

impl<T: Send + Sync> Lent<T> {
    /// An owner of the value, beside others.
    pub fn new(value: Arc<T>) -> Lent<T> {
        Lent(value)
    }

    /// The value. See the rules of the [module](self): the reference is good as long as an owner is there.
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

/// Owners that a thread does not need any more, until the end of its turn.
#[derive(Debug)]
pub struct Graveyard<T: 'static>(RefCell<Vec<Lent<T>>>);

impl<T> Graveyard<T> {
    /// An empty one.
    pub const fn new() -> Graveyard<T> {
        Graveyard(RefCell::new(Vec::new()))
    }

    /// Takes an owner, which lives until the end of the turn.
    pub fn retire(&self, owner: Lent<T>) {
        self.0.borrow_mut().push(owner);
    }

    /// What was taken; to be called between two turns, and dropped wherever it costs no request time.
    pub fn empty(&self) -> Vec<Lent<T>> {
        if self.0.borrow().is_empty() {
            return Vec::new();
        }
        self.0.take()
    }
}

/// A thread that ends frees nothing: its loop ends with its process, and what runs after it may still borrow.
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
