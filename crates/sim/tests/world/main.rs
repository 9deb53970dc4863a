//! Runs the whole server in a simulated world.
//!
//! A seed determines a course of the world: the configuration, the clients and their requests, when
//! each byte arrives, the order in which loops take their turns, and the faults. All of weir is as
//! in a release, including its backends. Time, the order of events, networks, clients, servers and
//! faults are simulated (`weir_engine::sim`). A course has a process of its own, so that its
//! descriptors can be counted. Without a seed, this program starts itself for some fresh seeds.
//!
//! `WEIR_SEED=7 cargo test -p weir-sim` runs one course, `WEIR_COURSES=1000` runs that many fresh
//! ones. With `WEIR_TRACE=1` a course prints its events. With `WEIR_CACHING=1` all courses are
//! about caches, with `WEIR_HTTP3=1` half of the clients speak HTTP/3. Without a seed, a few
//! courses with HTTP/3 are run as well.

#![allow(clippy::disallowed_methods, reason = "the peers are no tasks, and have no budget")]

mod accept_queue;
mod answer;
mod client;
mod client_request;
mod course;
mod crash;
mod extras;
mod faults;
mod fields;
mod final_checks;
mod frames;
mod http1_server;
mod http2_server;
mod judge;
mod kill;
mod law;
mod many;
mod multiplexed;
mod path;
mod pattern;
mod peer;
mod plan;
mod quic_client;
mod quic_network;
mod records;
mod reload;
mod reuse;
mod rfc9111;
mod stream;
mod threads;
mod tls;
mod wire;
mod world;
mod world_handle;

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use weir_server::Generations;
use weir_sys::quarantine::Quarantine;
use weir_testkit::{Dir, number};

use course::Course;
use plan::{CoursePlan, FILES, file_len};
use world::World;
use world_handle::WorldHandle;

/// Fills freed memory, so that a use after free reads nonsense.
#[global_allocator]
static ALLOCATOR: Quarantine = Quarantine::new();

/// The date of the world's start and of its files, in seconds since 1970. It is fixed, since dates
/// differ in length in HTTP/2, and a seed must always give the same course.
const DATE: i64 = 1_790_000_000;

fn main() -> ExitCode {
    match number("WEIR_COURSE") {
        Some(seed) => one(seed),
        None => many::run(),
    }
}

/// Runs one course in this process.
fn one(seed: u64) -> ExitCode {
    let before = crash::before();
    let dir = before.as_ref().map_or_else(Dir::new, |before| Dir::of_before(&before.home));
    let home = dir.path();
    let mut plan = CoursePlan::draw(seed, &home.display().to_string());
    if before.is_some() {
        plan = plan.after_crash();
    }
    for name in 0..FILES {
        let mut bytes = Vec::new();
        pattern::fill(&mut bytes, pattern::file(name), 0, file_len(name));
        let path = dir.write(&format!("files/s/f{name}"), bytes);
        let at = std::time::UNIX_EPOCH + Duration::from_secs(DATE as u64);
        let file = std::fs::File::options().write(true).open(path);
        file.and_then(|file| file.set_modified(at)).expect("a file of this test");
    }
    tls::write_files(&dir);
    let conf = dir.write("nginx.conf", &plan.config.text);
    let shown = number("WEIR_TRACE").is_some();
    if shown {
        println!("{}{plan:?}", plan.config.text);
    }
    let world = World::new(&plan, before.as_ref().map_or(DATE, |before| before.date), shown);
    world::on_step(&world);
    weir_engine::sim::install(Box::new(WorldHandle(Arc::clone(&world))));
    let args = ["-p", &home.display().to_string(), "-c", &conf.display().to_string()];
    let server = Generations::start(&args.map(Into::into)).expect("a configuration that is right");
    let mut course = Course::new(Arc::clone(&world), plan, home, server);
    course.run();
    let trace = world.trace();
    course.quit();
    let mut records = std::mem::take(&mut course.records);
    records.report_suspected();
    let (codes, most_beside) = (course.end(), course.most_beside);
    drop(course);
    if codes.iter().any(|code| *code != 0) {
        records.report(format!("workers ended with {codes:?}"));
    }
    read_log(home, shown, &mut records);
    for finding in &records.findings {
        println!("seed {seed}: {finding}");
    }
    let (answered, failed, excused) = (records.answered, records.failed, records.excused);
    let trace = trace ^ before.map_or(0, |before| before.trace);
    let (bytes, secs, calls) = (records.verified, world.now() / 1_000_000_000, world.most_calls());
    let (resumed, relief) = (records.resumed.len(), most_beside / 1000);
    let (reused, unchanged) = records.reuses.judged;
    let (quic, early) = (records.over_quic, records.early);
    println!(
        "answered {answered} failed {failed} excused {excused} bytes {bytes} resumed {resumed} reused {reused} unchanged {unchanged} quic {quic} early {early} relief {relief} seconds {secs} calls {calls} trace {trace:016x}"
    );
    if records.findings.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Reports lines of the error log that show a fault of the server itself.
fn read_log(home: &Path, shown: bool, records: &mut records::Records) {
    let log = std::fs::read_to_string(home.join("error.log")).unwrap_or_default();
    for line in log.lines() {
        if shown {
            println!("{line}");
        }
        if line.contains("panicked") || line.contains("[emerg]") {
            records.report(format!("logged: {line}"));
        }
    }
}
