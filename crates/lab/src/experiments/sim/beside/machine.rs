//! Measures the costs on this machine that the model needs.

use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use weir_balance::model::Machine;
use weir_bench::Closing;

use super::MS;
use crate::lab::{Lab, Traffic};
use crate::program::ServerSetup;
use crate::running::{RunningServer, pause};

/// The number of wake-ups to measure.
const WAKES: u32 = 300;
/// Clients of the server whose request cost is measured: enough to keep it busy.
const CLIENTS: usize = 8;

/// CPU time per request, of the server and of the client.
struct Cost {
    server: Duration,
    client: Duration,
}

/// Measures the cost of a request on a kept connection, and the additional cost of a connection.
pub(super) fn measure(lab: &Lab) -> Result<Machine, String> {
    lab.step("what a wake-up and a connection cost");
    let (kept, closing) = (cost(lab, Closing::Never)?, cost(lab, Closing::Always)?);
    Ok(Machine {
        cpus: std::thread::available_parallelism().map_or(1, usize::from),
        wakes: wakes(lab.size(WAKES, WAKES / 10)),
        accept: closing.server.saturating_sub(kept.server),
        connect: closing.client.saturating_sub(kept.client),
        request: kept.client,
    })
}

/// The measured costs, as text.
pub(super) fn describe(machine: &Machine) -> String {
    let micros = |time: Duration| time.as_secs_f64() * 1e6;
    let mut wakes = machine.wakes.clone();
    wakes.sort_unstable();
    let wake = |share: f64| {
        let n = (wakes.len() as f64 * share) as usize;
        wakes.get(n).copied().map_or(0.0, micros)
    };
    format!(
        "What the model was told of this machine, measured just before: {} CPUs for workers and clients together; a wake-up takes \
         {:.0} µs (one in ten {:.0} and more); accepting and closing a connection costs a worker {:.0} µs of CPU, \
         connecting and closing a client {:.0}, a request {:.0}. It is inside if the middle of what it draws lies in what was \
         measured, or the other way round.",
        machine.cpus,
        wake(0.5),
        wake(0.9),
        micros(machine.accept),
        micros(machine.connect),
        micros(machine.request),
    )
}

fn cost(lab: &Lab, closing: Closing) -> Result<Cost, String> {
    let setup = ServerSetup { processes: 1, ..ServerSetup::default() };
    let server = RunningServer::start(&lab.weir()?.policy("fair", "fair"), &setup)?;
    let before: Duration = server.cpu().into_iter().sum();
    let seen = lab.load(
        &server,
        &Traffic::closed(CLIENTS, closing, lab.size(MS * 500, MS * 200)),
        &mut |_| {},
    )?;
    let server = server.cpu().into_iter().sum::<Duration>().saturating_sub(before);
    let client = seen.threads.iter().map(|thread| thread.busy).sum::<Duration>();
    let requests = u32::try_from(seen.tally.requests().max(1)).unwrap_or(u32::MAX);
    Ok(Cost { server: server / requests, client: client / requests })
}

/// Measures wake-up latency: from a send on a channel until the receiving thread runs.
fn wakes(times: u32) -> Vec<Duration> {
    let (sender, wishes) = channel::<Instant>();
    let sleeper = std::thread::spawn(move || wishes.iter().map(|at| at.elapsed()).collect());
    for _ in 0..times {
        pause(MS);
        // The receiving thread ends only when the channel closes.
        let _ = sender.send(Instant::now());
    }
    drop(sender);
    sleeper.join().unwrap_or_default()
}
