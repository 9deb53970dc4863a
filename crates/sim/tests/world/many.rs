//! Runs many courses, each in a process of its own.

use std::io::Read;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use weir_testkit::{number, seed};

/// Seeds of the courses with HTTP/3 that run in addition. In the last one a worker is killed.
const QUIC: [u64; 6] = [9, 12, 17, 35, 60, 6019];
/// The default number of courses.
const COURSES: u64 = 10;
/// The limit of a course's CPU time, in ticks of 10 ms. The slowest courses take 50 s on an idle
/// machine, and more on a shared one with colder caches.
const TICKS: u64 = 18_000;
const PATIENCE: Duration = Duration::from_secs(1_200);

pub fn run() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if args.iter().any(|arg| arg == "--list") {
        println!("world: test");
        return ExitCode::SUCCESS;
    }
    // The filter of `cargo test` selects other tests.
    if args.iter().any(|arg| !arg.starts_with('-') && !"world".contains(arg.as_str())) {
        return ExitCode::SUCCESS;
    }
    let first = seed();
    let alone = number("WEIR_SEED").is_some() && number("WEIR_COURSES").is_none();
    let courses = if alone { 1 } else { number("WEIR_COURSES").unwrap_or(COURSES) };
    let began = Instant::now();
    let next = AtomicU64::new(first);
    let look = || {
        let mut failed = Vec::new();
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            match seed < first + courses {
                true if passes(seed, alone) => {}
                true => failed.push(seed),
                false => return failed,
            }
        }
    };
    let mut failed: Vec<u64> = std::thread::scope(|scope| {
        let cpus = std::thread::available_parallelism().map_or(1, Into::into);
        let lookers: Vec<_> = (0..cpus).map(|_| scope.spawn(look)).collect();
        lookers.into_iter().flat_map(|looker| looker.join().unwrap_or_default()).collect()
    });
    failed.sort_unstable();
    let with_quic: Vec<u64> =
        QUIC.into_iter().filter(|seed| !alone && !passes_with_quic(*seed)).collect();
    // A seed must give the same course twice.
    let same = trace(first) == trace(first);
    if !same {
        println!("two runs of seed {first} differ");
    }
    let took = began.elapsed().as_secs_f64();
    println!("{courses} courses in {took:.1} s, {} failed", failed.len());
    for seed in &failed {
        println!("failed: WEIR_SEED={seed} cargo test -p weir-sim");
    }
    for seed in &with_quic {
        println!("failed: WEIR_HTTP3=1 WEIR_SEED={seed} cargo test -p weir-sim");
    }
    if failed.is_empty() && with_quic.is_empty() && same {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn command(seed: u64) -> Command {
    let program = std::env::current_exe().expect("this program");
    let mut command = Command::new(program);
    command.env("WEIR_COURSE", seed.to_string()).stdout(Stdio::piped());
    command
}

/// The CPU time of a process, in ticks.
fn ticks(id: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields).split_ascii_whitespace();
    fields.skip(11).take(2).filter_map(|ticks| ticks.parse::<u64>().ok()).sum()
}

/// Runs a course. Returns its output, and whether it passed.
fn course(command: &mut Command, seed: u64) -> (String, bool) {
    let mut child: Child = command.spawn().expect("a process for a course");
    let mut out = child.stdout.take().expect("what it says");
    let id = child.id();
    let (told, ended) = std::sync::mpsc::channel::<()>();
    let watch = std::thread::spawn(move || {
        let began = Instant::now();
        let late = loop {
            match ended.recv_timeout(Duration::from_secs(1)) {
                Ok(()) => break false,
                Err(_) if began.elapsed() > PATIENCE || ticks(id) > TICKS => break true,
                Err(_) => {}
            }
        };
        if let (true, Some(pid)) = (late, rustix::process::Pid::from_raw(id as i32)) {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
        late
    });
    let mut text = String::new();
    let _ = out.read_to_string(&mut text);
    let ended = child.wait();
    let _ = told.send(());
    if watch.join().unwrap_or(true) {
        text.push_str(&format!("seed {seed}: hangs\n"));
    }
    (text, ended.is_ok_and(|status| status.success()))
}

fn passes(seed: u64, shown: bool) -> bool {
    let (text, passed) = course(&mut command(seed), seed);
    if !passed || shown {
        print!("{text}");
    }
    passed
}

fn passes_with_quic(seed: u64) -> bool {
    let mut command = command(seed);
    let (text, passed) = course(command.env("WEIR_HTTP3", "1"), seed);
    if !passed {
        print!("{text}");
    }
    passed
}

fn trace(seed: u64) -> Option<String> {
    let (text, _) = course(&mut command(seed), seed);
    text.lines().last()?.rsplit_once("trace ").map(|(_, trace)| trace.to_owned())
}
