//! Waits for the first of two futures inside one task.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use pin_project_lite::pin_project;

/// Which of two futures was first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Either<A, B> {
    /// The first argument.
    Left(A),
    /// The second argument.
    Right(B),
}

/// Waits for the first of `a` and `b`; `a` is polled first. The other future is dropped. If it is a
/// [`crate::Recv`], its buffer is lost.
pub fn either<A: Future, B: Future>(a: A, b: B) -> First<A, B> {
    First { a, b }
}

pin_project! {
    /// See [`either`]. An `async fn` would reserve space for each future twice: as an argument and
    /// pinned.
    #[must_use = "futures do nothing unless they are awaited"]
    pub struct First<A, B> {
        #[pin]
        a: A,
        #[pin]
        b: B,
    }
}

impl<A: Future, B: Future> Future for First<A, B> {
    type Output = Either<A::Output, B::Output>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        match this.a.poll(cx) {
            Poll::Ready(out) => Poll::Ready(Either::Left(out)),
            Poll::Pending => this.b.poll(cx).map(Either::Right),
        }
    }
}
