//! Fresh against used: whatever other clients have asked, broken off or got wrong before, and
//! whatever is served at the same time, a request's answer is that of a fresh server.
//!
//! `WEIR_SEED` replays a run, `WEIR_SEEDS` makes it longer, `WEIR_BINARY` names another build, such as a quicker one;
//! `TMPDIR=/dev/shm` makes it more than twice as quick, since each server has a folder of its own. A thousand seeds share the requests that they draw from, so
//! that a fresh server's answer is asked for once. What fails is made small before it is shown.

mod ask;
mod site;
mod soak;

use std::collections::HashMap;
use std::io::Write;
use std::net::TcpStream;
use std::time::Duration;

use weir_testkit::{Dice, Dir, Server, number, seed, unsigned};

use self::ask::Ask;
use super::hostile::greeted;
use super::{Client, Event, WEIR};

/// Connections that are kept between two requests.
const KEPT: usize = 3;
/// Seeds that share their requests, and how many these are.
const SHARE: u64 = 1000;
const ASKS: usize = 300;
/// What is done to a used server.
const STEPS: usize = 40;

/// What clients do.
#[derive(Debug, Clone)]
enum Step {
    /// They ask on one connection at once, kept if there is one and `kept` says so, and get their answers.
    Ask { asks: Vec<Ask>, kept: bool },
    /// One sends so many bytes of a request, and goes: by a reset or a close.
    BreakOff { ask: Ask, bytes: usize, reset: bool },
    /// One sends so many bytes of a request, and waits until the next one does.
    Hold { ask: Ask, bytes: usize },
}

impl Step {
    /// What is asked, and to be answered.
    fn asks(&self) -> &[Ask] {
        if let Step::Ask { asks, .. } = self { asks } else { &[] }
    }

    fn any(dice: &mut Dice, asks: &[Ask]) -> Step {
        let ask = asks[dice.below(asks.len())].clone();
        // Also all of a body that the client's request leaves unread.
        let bytes = match dice.one_in(4) {
            true => usize::MAX,
            false => dice.below(ask.bytes(1).len()),
        };
        match dice.below(6) {
            0 => Step::BreakOff { ask, bytes, reset: dice.one_in(2) },
            1 => Step::Hold { ask, bytes },
            _ => {
                let mut asked = vec![ask];
                while asked.len() < 4 && dice.one_in(3) {
                    let next = &asks[dice.below(asks.len())];
                    // Behind what is wrong there may be no answer.
                    if next.http2 == asked[0].http2 && next.flaw.or(asked[0].flaw).is_none() {
                        asked.push(next.clone());
                    }
                }
                Step::Ask { asks: asked, kept: dice.one_in(2) }
            }
        }
    }
}

/// A server, and connections to it that may be used again.
struct Used {
    server: Server,
    http1: Vec<weir_testkit::Client>,
    http2: Vec<Client>,
    held: Option<TcpStream>,
}

impl Used {
    fn new(conf: &str) -> Used {
        let binary = std::env::var("WEIR_BINARY").unwrap_or_else(|_| WEIR.to_owned());
        let server = Server::start(&binary, conf);
        Used { server, http1: Vec::new(), http2: Vec::new(), held: None }
    }

    /// Does what clients do: what they got, in the order in which they asked.
    fn act(&mut self, step: &Step) -> Vec<String> {
        match step {
            Step::BreakOff { ask, bytes, reset } => {
                let stream = self.begin(ask, *bytes);
                if *reset {
                    let now = Some(Duration::ZERO);
                    let _ = rustix::net::sockopt::set_socket_linger(&stream, now);
                }
                Vec::new()
            }
            Step::Hold { ask, bytes } => {
                self.held = Some(self.begin(ask, *bytes));
                Vec::new()
            }
            Step::Ask { asks, kept } => self.ask(asks, *kept),
        }
    }

    /// What comes of the requests, in their order; of the last ones nothing if the connection ended before.
    fn ask(&mut self, asks: &[Ask], kept: bool) -> Vec<String> {
        let said = match asks[0].http2 {
            true => self.ask_http2(asks, kept),
            false => self.ask_http1(asks, kept),
        };
        let (dir, port) = (self.server.dir().path(), self.server.port().to_string());
        // In this order: a directory's name has a number that may be the port's.
        let dir = dir.display().to_string();
        let plain = |said: String| unsigned(&said.replace(&dir, "DIR").replace(&port, "PORT"));
        said.into_iter().map(plain).collect()
    }

    fn ask_http1(&mut self, asks: &[Ask], kept: bool) -> Vec<String> {
        let kept = if kept { self.http1.pop() } else { None };
        let mut client = kept.unwrap_or_else(|| self.server.connect());
        client.send(asks.iter().flat_map(|ask| ask.bytes(1)).collect::<Vec<_>>());
        let mut said = Vec::new();
        for ask in asks {
            let answer = match client.try_response_to(ask.method) {
                Ok(answer) => answer,
                Err(error) => {
                    said.push(format!("{:?}", error.kind()));
                    return said;
                }
            };
            let known = |name: &str| name.eq_ignore_ascii_case("date");
            let headers: Vec<_> = answer.headers.iter().filter(|(name, _)| !known(name)).collect();
            said.push(format!("{} {headers:?} {}", answer.status, answer.body()));
            if answer.header("connection") != Some("keep-alive") {
                return said;
            }
        }
        if self.http1.len() < KEPT {
            self.http1.insert(0, client);
        }
        said
    }

    fn ask_http2(&mut self, asks: &[Ask], kept: bool) -> Vec<String> {
        let kept = if kept { self.http2.pop() } else { None };
        let mut client = kept.unwrap_or_else(|| greeted(&self.server));
        let first = if client.last == 0 { 1 } else { client.last + 2 };
        let ids: Vec<u32> = (0..asks.len() as u32).map(|n| first + 2 * n).collect();
        client.last = first + 2 * (asks.len() as u32 - 1);
        let frames = asks.iter().zip(&ids).flat_map(|(ask, id)| ask.bytes(*id));
        client.stream.write_all(&frames.collect::<Vec<_>>()).unwrap();
        while !ids.iter().all(|id| client.ended.get(id).is_some_and(|answer| answer.ended)) {
            match client.event() {
                Event::Goaway(code) => return vec![format!("GOAWAY {code}")],
                Event::Closed => return vec!["closed".to_owned()],
                _ => {}
            }
        }
        let ended = ids.iter().map(|id| client.ended.remove(id).unwrap());
        let said = ended.map(|mut answer| {
            answer.heads.iter_mut().for_each(|head| head.retain(|(name, _)| name != "date"));
            // Behind a whole answer a reset only says that the rest of the request is not wanted.
            let reset = answer.reset.filter(|_| answer.heads.is_empty());
            format!("{:?} {} reset: {reset:?}", answer.heads, answer.text())
        });
        let said = said.collect();
        if self.http2.len() < KEPT {
            self.http2.insert(0, client);
        }
        said
    }

    /// Sends so much of a request.
    fn begin(&self, ask: &Ask, bytes: usize) -> TcpStream {
        let all = ask.bytes(1);
        let client = if ask.http2 { greeted(&self.server) } else { Client::bare(&self.server) };
        (&client.stream).write_all(&all[..bytes.min(all.len())]).unwrap();
        client.stream
    }
}

/// Fresh servers' answers, each asked for once.
struct Fresh<'a> {
    conf: &'a str,
    known: HashMap<Ask, String>,
}

impl Fresh<'_> {
    fn answer(&mut self, ask: &Ask) -> &str {
        let new = || Used::new(self.conf).ask(std::slice::from_ref(ask), false).remove(0);
        self.known.entry(ask.clone()).or_insert_with(new)
    }

    /// The first answer of a used server that is another one.
    fn differs(&mut self, steps: &[Step]) -> Option<String> {
        let mut used = Used::new(self.conf);
        for (n, step) in steps.iter().enumerate() {
            for (ask, said) in step.asks().iter().zip(used.act(step)) {
                let fresh = self.answer(ask);
                if said != fresh {
                    return Some(format!("step {n}, {ask:?}:\n{said}\nfresh:\n{fresh}"));
                }
            }
        }
        None
    }

    /// Fewer steps that differ, too.
    fn shrink(&mut self, mut steps: Vec<Step>) -> Vec<Step> {
        let mut size = steps.len() / 2;
        while size > 0 {
            let mut at = 0;
            while at < steps.len() {
                let mut fewer = steps.clone();
                fewer.drain(at..(at + size).min(steps.len()));
                if self.differs(&fewer).is_some() { steps = fewer } else { at += size }
            }
            size /= 2;
        }
        steps
    }
}

#[test]
fn a_used_server_answers_as_a_fresh_one() {
    let first = seed();
    let seeds = number("WEIR_SEEDS").unwrap_or(5);
    let html = Dir::new();
    site::write(&html);
    let conf = site::conf(&html, site::origin(), site::scripts());
    let mut fresh = Fresh { conf: &conf, known: HashMap::new() };
    let (mut answers, mut shared) = (0, (None, Vec::new()));
    for seed in first..first + seeds {
        if shared.0 != Some(seed / SHARE) {
            let mut dice = Dice::salted(seed / SHARE, "requests");
            shared = (Some(seed / SHARE), (0..ASKS).map(|_| Ask::any(&mut dice)).collect());
            fresh.known.clear();
        }
        // So few of them, lest there be a fresh server for each request where seeds are few.
        let mut dice = Dice::new(seed);
        let some: Vec<Ask> = (0..STEPS / 2).map(|_| shared.1[dice.below(ASKS)].clone()).collect();
        let steps: Vec<Step> = (0..STEPS).map(|_| Step::any(&mut dice, &some)).collect();
        if let Some(difference) = fresh.differs(&steps) {
            let few = fresh.shrink(steps);
            let small = fresh.differs(&few).unwrap_or_default();
            panic!("WEIR_SEED={seed}: {difference}\n\nmade small: {few:#?}\n{small}");
        }
        answers += steps.iter().filter(|step| matches!(step, Step::Ask { .. })).count();
    }
    let fresh = fresh.known.len();
    println!("{seeds} seeds, {answers} answers like those of {fresh} fresh servers");
}
