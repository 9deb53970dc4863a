//! The experiments, one file each.

mod backends;
mod blocked;
mod heal;
mod herd;
mod keepalive;
mod queues;
mod reload;
mod reorder;
mod requests;
mod sharding;
mod shutdown;
pub(crate) mod sim;
mod spread;
mod steer;
mod workers;

use crate::experiment::Experiment;
use crate::program::{Family, Program};

/// All experiments, in the order of the report.
pub(crate) const ALL: &[Experiment] = &[
    spread::EXPERIMENT,
    queues::EXPERIMENT,
    workers::EXPERIMENT,
    sharding::EXPERIMENT,
    reorder::EXPERIMENT,
    herd::EXPERIMENT,
    blocked::EXPERIMENT,
    keepalive::EXPERIMENT,
    requests::EXPERIMENT,
    steer::EXPERIMENT,
    heal::EXPERIMENT,
    reload::EXPERIMENT,
    backends::EXPERIMENT,
    shutdown::EXPERIMENT,
    sim::EXPERIMENT,
];

/// Experiments whose requests block their worker.
const NEED_SLOW_HANDLERS: &[&str] = &["queues", "workers", "keepalive", "reload", "steer"];

/// Why a server takes no part in an experiment; `None` if it does.
pub(crate) fn why_absent(experiment: &Experiment, program: &Program) -> Option<&'static str> {
    match (experiment.name, program.family) {
        (name, _) if NEED_SLOW_HANDLERS.contains(&name) && !program.can_work() => Some(
            "none of its handlers can be made to hold up a worker (with Lua, or where a slow disk can be \
             mounted, one can)",
        ),
        (_, Family::Weir) => None,
        ("requests", _) if !program.can_sleep() => {
            Some("none of its handlers can be made to sleep for a time and now and then for longer")
        }
        ("shutdown", _) => Some("the question is to the kernel, and no server is asked"),
        ("sim", _) => Some("the model runs weir's policies, and weir alone stands beside it"),
        ("steer" | "heal", Family::Haproxy) => {
            Some("its workers are threads of one process, of which none can be stopped alone")
        }
        ("blocked", Family::Haproxy) => Some("it has no cache on a disk"),
        _ => None,
    }
}
