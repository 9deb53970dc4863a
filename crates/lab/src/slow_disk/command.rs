//! `weir lab slowdisk`.

use std::path::PathBuf;

use rustix::process::Signal;
use weir_sys::signal::SignalSet;

use crate::command::{LabError, print};

use super::{Delays, Operation, Share, SlowDisk, Spread};

/// Shows a directory at a mount point, where some operations are slow. SIGUSR1 switches that off and on;
/// SIGINT and SIGTERM unmount it
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Operations that may be slow
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "open,create,read,write,rename,unlink"
    )]
    ops: Vec<Operation>,
    /// The share of slow operations: 1/500, or 0.002
    #[arg(long, default_value = "1/500")]
    share: Share,
    /// How long a slow operation takes: 100ms, 50ms..200ms, or exp:100ms (the mean)
    #[arg(long, default_value = "100ms")]
    delay: Spread,
    /// The seed that selects slow operations and their delays
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// The directory to show
    source: PathBuf,
    /// The mount point, another directory
    mount: PathBuf,
}

/// Mounts the disk and waits for a signal. The error is a message for the user.
pub(crate) fn run(options: Options) -> Result<(), LabError> {
    let Options { ops: operations, share, delay: time, seed, source, mount } = options;
    // Threads inherit the signal mask, so it is set before they start.
    let ends = [Signal::INT, Signal::TERM, Signal::HUP].map(Signal::as_raw);
    let signals = SignalSet::new(&[&ends[..], &[Signal::USR1.as_raw()]].concat());
    signals.block().map_err(|e| format!("signals: {e}"))?;
    let delays = Delays { operations, share, time, seed };
    let disk = SlowDisk::mount(&source, &mount, delays)
        .map_err(|e| format!("cannot mount {} at {}: {e}", source.display(), mount.display()))?;
    print(format!("{} is at {} and slow\n", source.display(), mount.display()))?;
    loop {
        let arrived = signals.wait(None).map_err(|e| format!("signals: {e}"))?;
        match arrived.map(|signal| signal.number) {
            Some(number) if ends.contains(&number) => break,
            Some(_) => disk.set_slow(!disk.is_slow()),
            None => {}
        }
    }
    let (delayed, all) = disk.counts();
    print(format!("{delayed} of {all} operations were delayed\n"))
}
