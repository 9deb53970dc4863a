//! Boxed futures that are made in their box.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

/// A boxed future that is made in its box. `Box::pin` makes the future on the stack and copies it.
/// The copy covers kilobytes, although little of a future that has not begun is initialized.
#[must_use = "futures do nothing unless polled"]
pub struct Boxed<'a, T>(Pin<Box<dyn Work<T> + 'a>>);

trait Work<T> {
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T>;
}

/// `Option`, since the box exists before the future.
impl<F: Future> Work<F::Output> for Option<F> {
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        self.as_pin_mut().map_or(Poll::Pending, |future| future.poll(cx))
    }
}

impl<'a, T: 'a> Boxed<'a, T> {
    /// Boxes the future that `make` makes.
    pub fn new<F: Future<Output = T> + 'a>(make: impl FnOnce() -> F) -> Boxed<'a, T> {
        let mut empty = Box::into_pin(Box::<Option<F>>::default());
        empty.set(Some(make()));
        Boxed(empty)
    }
}

impl<T> Future for Boxed<'_, T> {
    type Output = T;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        self.get_mut().0.as_mut().poll(cx)
    }
}

impl<T> fmt::Debug for Boxed<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Boxed")
    }
}
