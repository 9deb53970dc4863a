//! The whole server in a simulated world.
//!
//! A seed determines a course of the world: how the server is configured, which clients come and
//! what they ask, when each byte arrives, in which order loops have their turns, what fails.
//! Everything of weir is what a release has in it, down to its backends. Simulated are time, the
//! order of events, networks, clients, servers and faults (`weir_engine::sim`). A course has a
//! process of its own, so that descriptors can be counted. Without a seed, this program starts
//! itself for some fresh ones.
//!
//! `WEIR_SEED=7 cargo test -p weir-sim` runs one course, `WEIR_COURSES=1000` that many fresh ones.
//! With `WEIR_TRACE=1` a course prints what happens. With `WEIR_CACHING=1` all courses are about caches,
//! with `WEIR_HTTP3=1` half of the clients speak HTTP/3. Without a seed, a few such courses are run as well.

#![allow(clippy::disallowed_methods, reason = "the peers are no tasks, and have no budget")]

mod accept_queue;
mod answer;
mod book;
mod caller;
mod calls;
mod client;
mod course;
mod crash;
mod extras;
mod fate;
mod fields;
mod frames;
mod judge;
mod kill;
mod last;
mod law;
mod looping;
mod many;
mod multiplexed;
mod origin;
mod path;
mod pattern;
mod peer;
mod reload;
mod reuse;
mod rfc;
mod secured;
mod server;
mod share;
mod stream;
mod wire;
mod world;

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use weir_server::Generations;
use weir_sys::quarantine::Quarantine;
use weir_testkit::{Dir, number};

use course::Course;
use fate::{FILES, Fate, file_len};
use share::Share;
use world::World;

/// What uses a site after it was freed reads nonsense.
#[global_allocator]
static ALLOCATOR: Quarantine = Quarantine::new();

/// When the world begins, since 1970, and when its files were written. It is fixed, since dates
/// differ in length in HTTP/2, and a seed must give the same course at any time.
const DATE: i64 = 1_790_000_000;

fn main() -> ExitCode {
    match number("WEIR_COURSE") {
        Some(seed) => one(seed),
        None => many::run(),
    }
}

/// One course of the world, in this process.
fn one(seed: u64) -> ExitCode {
    let before = crash::before();
    let dir = before.as_ref().map_or_else(Dir::new, |before| Dir::of_before(&before.home));
    let home = dir.path();
    let mut fate = Fate::draw(seed, &home.display().to_string());
    if before.is_some() {
        fate = fate.after_crash();
    }
    for name in 0..FILES {
        let mut bytes = Vec::new();
        pattern::fill(&mut bytes, pattern::file(name), 0, file_len(name));
        let path = dir.write(&format!("files/s/f{name}"), bytes);
        let at = std::time::UNIX_EPOCH + Duration::from_secs(DATE as u64);
        let file = std::fs::File::options().write(true).open(path);
        file.and_then(|file| file.set_modified(at)).expect("a file of this test");
    }
    secured::write_files(&dir);
    let conf = dir.write("nginx.conf", &fate.config.text);
    let shown = number("WEIR_TRACE").is_some();
    if shown {
        println!("{}{fate:?}", fate.config.text);
    }
    let world = World::new(&fate, before.as_ref().map_or(DATE, |before| before.date), shown);
    world::on_step(&world);
    weir_engine::sim::install(Box::new(Share(Arc::clone(&world))));
    let args = ["-p", &home.display().to_string(), "-c", &conf.display().to_string()];
    let server = Generations::start(&args.map(Into::into)).expect("a configuration that is right");
    let mut course = Course::new(Arc::clone(&world), fate, home, server);
    course.run();
    let trace = world.trace();
    course.quit();
    let mut book = std::mem::take(&mut course.book);
    book.settle();
    let (codes, most_beside) = (course.end(), course.most_beside);
    drop(course);
    if codes.iter().any(|code| *code != 0) {
        book.find(format!("workers ended with {codes:?}"));
    }
    read_log(home, shown, &mut book);
    for finding in &book.findings {
        println!("seed {seed}: {finding}");
    }
    let (answered, failed, excused) = (book.answered, book.failed, book.excused);
    let trace = trace ^ before.map_or(0, |before| before.trace);
    let (bytes, secs, calls) = (book.verified, world.now() / 1_000_000_000, world.most_calls());
    let (resumed, relief) = (book.resumed.len(), most_beside / 1000);
    let (reused, unchanged) = book.reuses.judged;
    let (quic, early) = (book.over_quic, book.early);
    println!(
        "answered {answered} failed {failed} excused {excused} bytes {bytes} resumed {resumed} reused {reused} unchanged {unchanged} quic {quic} early {early} relief {relief} seconds {secs} calls {calls} trace {trace:016x}"
    );
    if book.findings.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Checks that the error log has no line about a fault of the server itself.
fn read_log(home: &Path, shown: bool, book: &mut book::Book) {
    let log = std::fs::read_to_string(home.join("error.log")).unwrap_or_default();
    for line in log.lines() {
        if shown {
            println!("{line}");
        }
        if line.contains("panicked") || line.contains("[emerg]") {
            book.find(format!("logged: {line}"));
        }
    }
}
