//! Pipes that carry the body of a subrequest to its parent.

use std::cell::RefCell;
use std::io;
use std::rc::Rc;
use std::task::{Poll, Waker};

use weir_engine::{Chain, Segment};

/// The most bytes of memory in a pipe.
pub const PIPE: u64 = 64 * 1024;

/// What follows a piece of a body, as far as the sender knows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Then {
    /// More follows at once.
    #[default]
    More,
    /// More follows at an unknown time.
    Pause,
    /// More follows, and filters must not keep anything back until then.
    Flush,
    /// Another body of the same answer. Filters send what they keep before it.
    Part,
    /// Nothing. The piece is the last.
    End,
}

/// A running subrequest. Dropping it cancels it.
pub struct Subrequest(Rc<Pipe>);

/// The bytes between a subrequest and its reader.
#[derive(Default)]
pub struct Pipe(RefCell<Flow>);

#[derive(Default)]
struct Flow {
    chain: Chain,
    /// What follows the bytes, which tells the reader whether to flush.
    then: Then,
    end: Option<End>,
    /// The reader has gone.
    abandoned: bool,
    reader: Option<Waker>,
    writer: Option<Waker>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    InOrder,
    /// It broke off or panicked, so its parent breaks off, too. With its status, if it had one.
    Broken(u16),
}

impl Subrequest {
    /// The reader of a pipe.
    pub fn reads(pipe: Rc<Pipe>) -> Subrequest {
        Subrequest(pipe)
    }

    /// Whether [`Subrequest::next`] need not wait.
    pub fn has_more(&self) -> bool {
        let flow = self.0.0.borrow();
        flow.has_piece() || flow.end.is_some()
    }

    /// The status with which it broke off. 0 if it did not.
    pub fn broken_status(&self) -> u16 {
        match self.0.0.borrow().end {
            Some(End::Broken(status)) => status,
            _ => 0,
        }
    }

    /// The next piece of its body, and what follows that. None at the end. A piece may be empty.
    pub async fn next(&self) -> io::Result<Option<(Chain, Then)>> {
        std::future::poll_fn(|cx| {
            let mut flow = self.0.0.borrow_mut();
            if flow.has_piece() {
                let piece = (std::mem::take(&mut flow.chain), std::mem::take(&mut flow.then));
                wake(&mut flow.writer);
                return Poll::Ready(Ok(Some(piece)));
            }
            match flow.end {
                Some(End::InOrder) => Poll::Ready(Ok(None)),
                Some(End::Broken(_)) => Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into())),
                None => {
                    flow.reader = Some(cx.waker().clone());
                    Poll::Pending
                }
            }
        })
        .await
    }
}

impl Flow {
    fn has_piece(&self) -> bool {
        !self.chain.is_empty() || self.then > Then::More
    }
}

impl Drop for Subrequest {
    fn drop(&mut self) {
        let mut flow = self.0.0.borrow_mut();
        flow.abandoned = true;
        wake(&mut flow.writer);
    }
}

impl Pipe {
    /// Writes bytes. Waits while the pipe is full.
    pub async fn write(&self, mut chain: Chain) -> io::Result<()> {
        std::future::poll_fn(|cx| {
            let mut flow = self.0.borrow_mut();
            if flow.abandoned {
                return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
            }
            if memory(&flow.chain) >= PIPE {
                flow.writer = Some(cx.waker().clone());
                return Poll::Pending;
            }
            flow.chain.append(&mut chain);
            wake(&mut flow.reader);
            Poll::Ready(Ok(()))
        })
        .await
    }

    /// Makes the reader send what was written, by the rule of [`Then::Pause`] or [`Then::Flush`].
    pub fn urge(&self, then: Then) {
        let mut flow = self.0.borrow_mut();
        flow.then = flow.then.max(then);
        wake(&mut flow.reader);
    }

    async fn abandoned(&self) {
        std::future::poll_fn(|cx| {
            let mut flow = self.0.borrow_mut();
            if flow.abandoned {
                return Poll::Ready(());
            }
            flow.writer = Some(cx.waker().clone());
            Poll::Pending
        })
        .await;
    }
}

fn wake(waker: &mut Option<Waker>) {
    if let Some(waker) = waker.take() {
        waker.wake();
    }
}

/// Bytes of a chain that occupy memory.
fn memory(chain: &Chain) -> u64 {
    chain.segments().filter_map(Segment::memory).map(|m| m.len() as u64).sum()
}

/// Tells the reader that the subrequest has ended, even by a panic.
pub struct Ending {
    pipe: Rc<Pipe>,
    how: End,
}

impl Ending {
    /// It ends broken, unless it says otherwise.
    pub fn of(pipe: Rc<Pipe>) -> Ending {
        Ending { pipe, how: End::Broken(0) }
    }

    /// All of the body was written.
    pub fn is_in_order(&mut self) {
        self.how = End::InOrder;
    }

    /// It ended in the midst, with this status.
    pub fn breaks_off_with(&mut self, status: u16) {
        self.how = End::Broken(status);
    }

    /// Waits until the reader has gone.
    pub async fn abandoned(&self) {
        self.pipe.abandoned().await;
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        let mut flow = self.pipe.0.borrow_mut();
        flow.end = Some(self.how);
        wake(&mut flow.reader);
    }
}
