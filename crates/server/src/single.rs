//! `master_process off`: a single process without a master, for debugging.

use std::sync::Arc;

use weir_log::{Cause, log};
use weir_sys::guarded;

use crate::cycle::{Cycle, Origin};
use crate::health;
use crate::master::{Assignment, FATAL, registry};
use crate::worker::{self, identity};

/// Serves until it is told to end. Returns the exit code.
pub fn run(cycle: Cycle, origin: Origin) -> i32 {
    let log = Arc::clone(&cycle.log);
    if identity::take_environment(&cycle.config, &log).is_err() {
        return FATAL;
    }
    let registry = match registry() {
        Ok(registry) => registry,
        Err(e) => {
            log!(log, Emerg, None, "mmap() of the counters failed {}", Cause(&e));
            return FATAL;
        }
    };
    let pid = cycle.config.pid.clone();
    cycle.steer();
    let mut sockets = cycle.sockets.clone();
    sockets.close();
    let tallies = (0..cycle.config.threads).collect();
    health::watch(registry, cycle.sites.clone(), cycle.config.events.connections);
    let origin = Arc::new(origin);
    let (index, channel, title) = (0, None, Arc::default());
    let generation = 0;
    let code = worker::serve(Assignment {
        cycle,
        origin,
        index,
        tallies,
        generation,
        registry,
        channel,
        bell: None,
        title,
        is_agent: false,
    });
    if let Some(path) = pid
        && let Err(e) = guarded::remove(&path)
    {
        log!(log, Alert, None, "unlink() \"{}\" failed {}", path.display(), Cause(&e));
    }
    sockets.unlink(&log);
    code
}
