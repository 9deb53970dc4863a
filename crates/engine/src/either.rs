//! Waiting for two things at once inside one task.

use std::future::Future;
use std::pin::pin;
use std::task::Poll;

/// Which of two futures was first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Either<A, B> {
    /// The first argument.
    Left(A),
    /// The second argument.
    Right(B),
}

/// Waits for whichever of `a` and `b` is ready first; `a` is asked first. The other one is
/// dropped: with a [`crate::Recv`] on that side, what it had in its buffer is gone.
pub async fn either<A: Future, B: Future>(a: A, b: B) -> Either<A::Output, B::Output> {
    let (mut a, mut b) = (pin!(a), pin!(b));
    std::future::poll_fn(|cx| {
        if let Poll::Ready(out) = a.as_mut().poll(cx) {
            return Poll::Ready(Either::Left(out));
        }
        b.as_mut().poll(cx).map(Either::Right)
    })
    .await
}
