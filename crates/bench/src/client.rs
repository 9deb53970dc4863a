//! HTTP/1: a client, which has one connection at a time and makes one request after another.

use std::rc::Rc;
use std::time::{Duration, Instant};

use weir_engine::{Chain, Patience};
use weir_tls::Wire;

use crate::answer::ResponseReader;
use crate::pace::Start;
use crate::tally::note;
use crate::thread_state::{ClientGuard, DueRequest, ThreadState};
use crate::{Closing, PreparedRequest, RequestFailure};

/// A client with its current connection, if it has one.
struct ConnectionLoop {
    state: Rc<ThreadState>,
    connection: Option<OpenConnection>,
    reader: ResponseReader,
    random: u64,
    /// When the last request ended.
    free_since: Instant,
}

struct OpenConnection {
    wire: Wire,
    peer: usize,
    /// Whether it has carried a request before.
    is_kept: bool,
}

/// Makes requests until the schedule has no more.
pub(crate) async fn run(state: Rc<ThreadState>, order: u32) {
    let _guard = ClientGuard(Rc::clone(&state));
    let random = Closing::seed(order);
    // The client is free from the start of the run.
    let free_since = state.schedule.began;
    let mut client = ConnectionLoop {
        state,
        connection: None,
        reader: ResponseReader::default(),
        random,
        free_since,
    };
    if let Some(gap) = client.state.plan.connect_first {
        client.connect_early(gap.saturating_mul(order)).await;
    }
    while let Some(start) = client.state.schedule.claim(Instant::now()) {
        client.serve(start).await;
    }
}

impl ConnectionLoop {
    /// Connects after this delay, then waits until the first request is due.
    async fn connect_early(&mut self, after: Duration) {
        let h = self.state.h.clone();
        h.sleep(after).await;
        // A failure is not counted here. The first request connects again and counts it.
        let _ = self.connect(self.state.plan.calls.first().map_or(0, |call| call.peer)).await;
        h.sleep_until(self.state.schedule.began).await;
    }

    async fn serve(&mut self, start: Start) {
        let state = Rc::clone(&self.state);
        let Some(DueRequest { call, began }) = state.begin(start, self.free_since).await else {
            return;
        };
        let more = self.batch();
        let mut left = 1 + more;
        if let Err(failure) = self.exchange(call, began, &mut left).await {
            self.connection = None;
            state.failed(failure, left).await;
        }
        self.free_since = Instant::now();
    }

    /// Claims the further requests of a pipelined batch. Returns their number.
    fn batch(&mut self) -> u64 {
        let wanted = self.state.plan.pipeline.saturating_sub(1);
        let now = Instant::now();
        (0..wanted).map_while(|_| self.state.schedule.claim(now)).count() as u64
    }

    /// Sends `left` requests and reads their responses. `left` then counts those without a
    /// response.
    async fn exchange(
        &mut self,
        call: &PreparedRequest,
        began: Instant,
        left: &mut u64,
    ) -> Result<(), RequestFailure> {
        let state = Rc::clone(&self.state);
        let closes = self.closes();
        let had_line = self.reuse(call.peer);
        if !had_line {
            self.connect(call.peer).await?;
        }
        let Some(connection) = &mut self.connection else { return Err(RequestFailure::Connect) };
        connection.wire.set_timeout(Some(state.plan.timeout));
        let was_kept = std::mem::replace(&mut connection.is_kept, true);
        let sent = send(&connection.wire, call, *left, closes).await;
        sent.map_err(|failure| as_failure(failure, was_kept))?;
        let sent = Instant::now();
        let mut first = true;
        while *left > 0 {
            let before = self.reader.received;
            if first {
                let received = self.reader.first_byte(&connection.wire).await;
                received.map_err(|failure| as_failure(failure, was_kept))?;
                let waited = sent.elapsed();
                note(&mut state.tally.borrow_mut().first_byte, waited);
                first = false;
            }
            let answer = self.reader.answer(&connection.wire, call.is_head, &state.memo).await?;
            *left -= 1;
            state.answered(began, answer.status, self.reader.received - before);
            if !answer.keep_alive || (closes && *left == 0) {
                let connection = self.connection.take();
                close(connection);
                // The server does not answer requests that were sent behind its last response.
                return if *left == 0 { Ok(()) } else { Err(RequestFailure::ClosedKept) };
            }
        }
        Ok(())
    }

    /// Whether the current connection can carry a request to this peer. A closed one, or one to
    /// another peer, is dropped.
    fn reuse(&mut self, peer: usize) -> bool {
        self.connection.take_if(|connection| {
            connection.peer != peer || connection.wire.socket().peek_closed()
        });
        self.connection.is_some() && self.reader.is_empty()
    }

    async fn connect(&mut self, peer: usize) -> Result<(), RequestFailure> {
        let Some(to) = self.state.plan.peers.get(peer) else { return Err(RequestFailure::Connect) };
        let wire = self.state.open(to).await?;
        self.reader.reset();
        self.connection = Some(OpenConnection { wire, peer, is_kept: false });
        Ok(())
    }

    fn closes(&mut self) -> bool {
        self.state.plan.closing.draw(&mut self.random)
    }
}

async fn send(
    wire: &Wire,
    call: &PreparedRequest,
    times: u64,
    closes: bool,
) -> Result<(), RequestFailure> {
    let mut chain = Chain::new();
    (1..times).for_each(|_| chain.push(call.kept.clone()));
    chain.push(if closes { call.closing.clone() } else { call.kept.clone() });
    wire.send(&mut chain, Patience::Watched).await.map_err(|e| RequestFailure::of_send(&e))
}

/// Counts the end of a reused connection before the first byte as a failure of its own.
fn as_failure(failure: RequestFailure, was_kept: bool) -> RequestFailure {
    match failure {
        RequestFailure::Closed | RequestFailure::Reset if was_kept => RequestFailure::ClosedKept,
        other => other,
    }
}

/// Closes a connection after a complete response. If the server has not closed first, the
/// connection is reset: its port would otherwise stay in TIME_WAIT for a minute, and the ports of
/// this machine would run out.
fn close(connection: Option<OpenConnection>) {
    if let Some(connection) = connection
        && !connection.wire.socket().peek_closed()
    {
        // If the reset fails, the close is an ordinary one.
        let _ = connection.wire.socket().reset_on_close();
    }
}
