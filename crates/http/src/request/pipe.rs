//! A subrequest's body on its way to the request that it is made for.

use std::cell::RefCell;
use std::io;
use std::rc::Rc;
use std::task::{Poll, Waker};

use weir_engine::{Chain, Segment};

/// A subrequest's memory that waits for its reader, at the most.
pub const PIPE: u64 = 64 * 1024;

/// What follows a piece of a body.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Then {
    /// More, at once.
    #[default]
    More,
    /// More, at an unknown time.
    Pause,
    /// More, and nothing is to be kept back until then.
    Flush,
    /// Another body in the same answer: what filters keep of this one goes before it.
    Part,
    /// Nothing: it was the last.
    End,
}

/// A subrequest that runs; dropped, it is given up.
pub struct Subrequest(Rc<Pipe>);

/// Bytes on their way from a subrequest to its reader.
#[derive(Default)]
pub struct Pipe(RefCell<Flow>);

#[derive(Default)]
struct Flow {
    chain: Chain,
    /// What follows it: whether the reader sends on what it has.
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
    /// Its connection broke, or it panicked: so ends the request that it is made for. With the status that it had, if any.
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

    /// The status that it broke off with; 0 if it did not.
    pub fn broken_status(&self) -> u16 {
        match self.0.0.borrow().end {
            Some(End::Broken(status)) => status,
            _ => 0,
        }
    }

    /// The next piece of its body, and what follows it; `None` at its end. A piece may be empty.
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
    /// Waits while the reader is behind.
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

    /// Has the reader send on what was written, as [`Then::Pause`] or [`Then::Flush`] tells.
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
