//! One of the client's connections: request, answer, and so on.

use std::rc::Rc;
use std::time::{Duration, Instant};

use weir_engine::{Chain, Patience};
use weir_tls::Wire;

use crate::answer::ResponseReader;
use crate::pace::Start;
use crate::site::{DueRequest, Leave, ThreadPlan};
use crate::tally::note;
use crate::{Closing, PreparedRequest, RequestFailure};

/// A connection of the past or the present.
struct ConnectionLoop {
    site: Rc<ThreadPlan>,
    line: Option<OpenConnection>,
    reader: ResponseReader,
    random: u64,
    /// When the last request was over.
    free: Instant,
}

struct OpenConnection {
    wire: Wire,
    peer: usize,
    /// It has answered before.
    is_kept: bool,
}

/// Makes requests until there are no more to make.
pub(crate) async fn run(site: Rc<ThreadPlan>, order: u32) {
    let _leave = Leave(Rc::clone(&site));
    let random = Closing::seed(order);
    // It had nothing to do before the run.
    let free = site.schedule.began;
    let mut client =
        ConnectionLoop { site, line: None, reader: ResponseReader::default(), random, free };
    if let Some(gap) = client.site.plan.connect_first {
        client.arrive(gap.saturating_mul(order)).await;
    }
    while let Some(start) = client.site.schedule.claim(Instant::now()) {
        client.serve(start).await;
    }
}

impl ConnectionLoop {
    /// Connects `after` a while, and waits for the first request's time.
    async fn arrive(&mut self, after: Duration) {
        let h = self.site.h.clone();
        h.sleep(after).await;
        // A client that cannot connect tries again with the first request, where failures count.
        let _ = self.connect(self.site.plan.calls.first().map_or(0, |call| call.peer)).await;
        h.sleep_until(self.site.schedule.began).await;
    }

    async fn serve(&mut self, start: Start) {
        let site = Rc::clone(&self.site);
        let Some(DueRequest { call, began, now }) = site.begin(start, self.free).await else {
            return;
        };
        let more = self.batch();
        let mut left = 1 + more;
        if let Err(failure) = self.exchange(call, began, now, &mut left).await {
            self.line = None;
            site.failed(failure, left).await;
        }
        self.free = Instant::now();
    }

    /// With pipelining: how many more requests go out with this one.
    fn batch(&mut self) -> u64 {
        let wanted = self.site.plan.pipeline.saturating_sub(1);
        let now = Instant::now();
        (0..wanted).map_while(|_| self.site.schedule.claim(now)).count() as u64
    }

    /// Sends `left` requests and reads their answers; `left` says how many have none.
    async fn exchange(
        &mut self,
        call: &PreparedRequest,
        began: Instant,
        now: Instant,
        left: &mut u64,
    ) -> Result<(), RequestFailure> {
        let site = Rc::clone(&self.site);
        let closes = self.closes();
        let had_line = self.reuse(call.peer);
        if !had_line {
            self.connect(call.peer).await?;
        }
        let sent = if had_line { now } else { Instant::now() };
        let Some(line) = &mut self.line else { return Err(RequestFailure::Connect) };
        line.wire.set_timeout(Some(site.plan.timeout));
        let was_kept = std::mem::replace(&mut line.is_kept, true);
        send(&line.wire, call, *left, closes).await?;
        let mut first = true;
        while *left > 0 {
            let before = self.reader.received;
            if first {
                let come = self.reader.first_byte(&line.wire).await;
                come.map_err(|failure| blame(failure, was_kept))?;
                let waited = sent.elapsed();
                note(&mut site.tally.borrow_mut().first_byte, waited);
                first = false;
            }
            let answer = self.reader.answer(&line.wire, call.is_head, &site.memo).await?;
            *left -= 1;
            site.answered(began, answer.status, self.reader.received - before);
            if !answer.keeps || (closes && *left == 0) {
                let line = self.line.take();
                close(line);
                // What was sent behind a last answer will have none.
                return if *left == 0 { Ok(()) } else { Err(RequestFailure::ClosedKept) };
            }
        }
        Ok(())
    }

    /// True if the connection there is can be used.
    fn reuse(&mut self, peer: usize) -> bool {
        self.line.take_if(|line| line.peer != peer || line.wire.socket().peek_closed());
        self.line.is_some() && self.reader.is_empty()
    }

    async fn connect(&mut self, peer: usize) -> Result<(), RequestFailure> {
        let Some(to) = self.site.plan.peers.get(peer) else { return Err(RequestFailure::Connect) };
        let wire = self.site.open(to).await?;
        self.reader.reset();
        self.line = Some(OpenConnection { wire, peer, is_kept: false });
        Ok(())
    }

    fn closes(&mut self) -> bool {
        self.site.plan.closing.draw(&mut self.random)
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

/// An end before the first byte on a connection that has served is told apart.
fn blame(failure: RequestFailure, was_kept: bool) -> RequestFailure {
    match failure {
        RequestFailure::Closed | RequestFailure::Reset if was_kept => RequestFailure::ClosedKept,
        other => other,
    }
}

/// Closes after a complete answer. If the server has not closed first, the connection is reset:
/// otherwise it would hold a port of this machine for a minute, and ports would run out.
fn close(line: Option<OpenConnection>) {
    if let Some(line) = line
        && !line.wire.socket().peek_closed()
    {
        // What it fails at is a better way to close.
        let _ = line.wire.socket().reset_on_close();
    }
}
