//! One of the client's connections: request, answer, and so on.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use weir_engine::{Chain, ConnectOptions, Handle, SocketAddrAny, Stream};

use crate::answer::{Memo, Reader};
use crate::drive::News;
use crate::pace::{Alarm, Schedule, Start};
use crate::tally::note;
use crate::{Call, Closing, Failure, Plan, Sample, Tally};

/// Answers handed to the watcher at once.
const BLOCK: usize = 4096;
/// How long a client keeps still that could not connect: a server that is away must not make
/// this one spin.
const PAUSE: Duration = Duration::from_millis(1);

/// What the connections of one thread share.
pub(crate) struct Site {
    pub(crate) h: Handle,
    pub(crate) plan: Plan,
    pub(crate) schedule: std::sync::Arc<Schedule>,
    pub(crate) alarm: Rc<Alarm>,
    pub(crate) tally: RefCell<Tally>,
    pub(crate) samples: RefCell<Vec<Sample>>,
    pub(crate) news: Sender<News>,
    pub(crate) memo: RefCell<Memo>,
    pub(crate) live: Cell<usize>,
}

/// A connection of the past or the present.
struct Client {
    site: Rc<Site>,
    line: Option<Line>,
    reader: Reader,
    random: u64,
    /// When the last request was over.
    free: Instant,
}

struct Line {
    stream: Stream,
    peer: usize,
    /// It has answered before.
    is_kept: bool,
}

/// Counts a client out when it ends, in whatever way.
struct Leave(Rc<Site>);

impl Drop for Leave {
    fn drop(&mut self) {
        let live = self.0.live.get().saturating_sub(1);
        self.0.live.set(live);
        if live == 0 {
            self.0.h.stop();
        }
    }
}

/// Makes requests until there are no more to make.
pub(crate) async fn run(site: Rc<Site>, order: u32) {
    let _leave = Leave(Rc::clone(&site));
    let random = (u64::from(order) + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let free = Instant::now();
    let mut client = Client { site, line: None, reader: Reader::default(), random, free };
    if let Some(gap) = client.site.plan.connect_first {
        client.arrive(gap.saturating_mul(order)).await;
    }
    while let Some(start) = client.site.schedule.claim(Instant::now()) {
        client.serve(start).await;
    }
}

impl Client {
    /// Connects `after` a while, and waits for the first request's time.
    async fn arrive(&mut self, after: Duration) {
        let h = self.site.h.clone();
        h.sleep(after).await;
        // Whoever cannot connect tries again with the first request, where failures count.
        let _ = self.connect(self.site.plan.calls.first().map_or(0, |call| call.peer)).await;
        h.sleep_until(self.site.schedule.began).await;
    }

    async fn serve(&mut self, start: Start) {
        let site = Rc::clone(&self.site);
        if let Some(at) = start.intended {
            site.alarm.until(at).await;
        }
        let now = Instant::now();
        let began = start.intended.unwrap_or(now);
        if start.intended.is_some() {
            let mut tally = site.tally.borrow_mut();
            tally.crowded += u64::from(self.free > began);
            note(&mut tally.lag, now.saturating_duration_since(began.max(self.free)));
        }
        let Some(call) = site.plan.calls.get(start.number as usize % site.plan.calls.len().max(1))
        else {
            return;
        };
        let more = self.batch();
        let mut left = 1 + more;
        if let Err(failure) = self.exchange(call, began, now, &mut left).await {
            site.tally.borrow_mut().failed(failure, left);
            self.line = None;
            if matches!(failure, Failure::Refused | Failure::Exhausted | Failure::Connect) {
                site.h.sleep(PAUSE).await;
            }
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
        call: &Call,
        began: Instant,
        now: Instant,
        left: &mut u64,
    ) -> Result<(), Failure> {
        let site = Rc::clone(&self.site);
        let closes = self.closes();
        let had_line = self.reuse(call.peer);
        if !had_line {
            self.connect(call.peer).await?;
        }
        let sent = if had_line { now } else { Instant::now() };
        let Some(line) = &mut self.line else { return Err(Failure::Connect) };
        line.stream.set_timeout(Some(site.plan.timeout));
        let was_kept = std::mem::replace(&mut line.is_kept, true);
        send(&line.stream, call, *left, closes).await?;
        let mut first = true;
        while *left > 0 {
            let before = self.reader.received;
            if first {
                let come = self.reader.first_byte(&line.stream).await;
                come.map_err(|failure| blame(failure, was_kept))?;
                let waited = sent.elapsed();
                note(&mut site.tally.borrow_mut().first_byte, waited);
                first = false;
            }
            let answer = self.reader.answer(&line.stream, call.is_head, &site.memo).await?;
            *left -= 1;
            site.answered(began, answer.status, self.reader.received - before);
            if !answer.keeps || (closes && *left == 0) {
                let line = self.line.take();
                close(line);
                // What was sent behind a last answer will have none.
                return if *left == 0 { Ok(()) } else { Err(Failure::ClosedKept) };
            }
        }
        Ok(())
    }

    /// True if the connection there is can be used.
    fn reuse(&mut self, peer: usize) -> bool {
        self.line.take_if(|line| line.peer != peer || line.stream.peek_closed());
        self.line.is_some() && self.reader.is_empty()
    }

    async fn connect(&mut self, peer: usize) -> Result<(), Failure> {
        let site = &self.site;
        let Some(to) = site.plan.peers.get(peer) else { return Err(Failure::Connect) };
        let began = Instant::now();
        let how = ConnectOptions {
            deadline: began.checked_add(site.plan.timeout),
            ..ConnectOptions::default()
        };
        let stream = site.h.connect(to, &how).await.map_err(|e| Failure::of_connect(&e))?;
        if !is_unix(to) {
            stream.nodelay(true).map_err(|_| Failure::Connect)?;
        }
        note(&mut site.tally.borrow_mut().connect, began.elapsed());
        self.reader.reset();
        self.line = Some(Line { stream, peer, is_kept: false });
        Ok(())
    }

    fn closes(&mut self) -> bool {
        match self.site.plan.closing {
            Closing::Always => true,
            Closing::Never => false,
            Closing::OneIn(n) => {
                self.random ^= self.random << 13;
                self.random ^= self.random >> 7;
                self.random ^= self.random << 17;
                self.random.is_multiple_of(u64::from(n.max(1)))
            }
        }
    }
}

impl Site {
    fn answered(&self, began: Instant, status: u16, bytes: u64) {
        let now = Instant::now();
        let mut tally = self.tally.borrow_mut();
        tally.bytes += bytes;
        tally.in_time += u64::from(self.schedule.end.is_none_or(|end| now <= end));
        let sample = tally.answered(now.saturating_duration_since(began), status);
        drop(tally);
        if self.plan.samples {
            let mut samples = self.samples.borrow_mut();
            samples.push(sample);
            if samples.len() == BLOCK {
                self.hand_over(std::mem::take(&mut *samples));
            }
        }
    }

    /// Gives answers to the thread that watches. It is gone only when the run is.
    pub(crate) fn hand_over(&self, samples: Vec<Sample>) {
        let _ = self.news.send(News::Samples(samples));
    }
}

async fn send(stream: &Stream, call: &Call, times: u64, closes: bool) -> Result<(), Failure> {
    let mut chain = Chain::new();
    (1..times).for_each(|_| chain.push(call.kept.clone()));
    chain.push(if closes { call.closing.clone() } else { call.kept.clone() });
    stream.send(&mut chain).await.map_err(|e| Failure::of_send(&e))
}

/// An end before the first byte on a connection that has served is told apart.
fn blame(failure: Failure, was_kept: bool) -> Failure {
    match failure {
        Failure::Closed | Failure::Reset if was_kept => Failure::ClosedKept,
        other => other,
    }
}

/// Closes after a complete answer. If the server has not closed first, the connection is reset:
/// otherwise it would hold a port of this machine for a minute, and ports would run out.
fn close(line: Option<Line>) {
    if let Some(line) = line
        && !line.stream.peek_closed()
    {
        // What it fails at is a better way to close.
        let _ = line.stream.reset_on_close();
    }
}

fn is_unix(address: &SocketAddrAny) -> bool {
    address.address_family() == rustix::net::AddressFamily::UNIX
}
