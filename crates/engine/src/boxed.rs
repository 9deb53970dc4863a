//! Futures in boxes of their own.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

/// A future in a box, made where it stays. `Box::pin` makes it on the stack and copies it, all of its kilobytes, although nearly
/// nothing of a future that has not begun is written.
#[must_use = "futures do nothing unless polled"]
pub struct Boxed<'a, T>(Pin<Box<dyn Work<T> + 'a>>);

trait Work<T> {
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T>;
}

/// `Option`, since its box is there before the future is.
impl<F: Future> Work<F::Output> for Option<F> {
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        self.as_pin_mut().map_or(Poll::Pending, |future| future.poll(cx))
    }
}

impl<'a, T: 'a> Boxed<'a, T> {
    /// The future that `make` makes.
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
