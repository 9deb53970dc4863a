//! Kubernetes objects to a configuration of weir: Ingresses in the place of ingress-nginx, and Gateway API.
//!
//! [`translate`](translate()) is the core: a [`Snapshot`] of objects goes in, the text of a configuration comes out, with a list of
//! [`Finding`]s. Values of objects become words of directives of `weir_conf`, which prints them, so they cannot add a directive. The core
//! has no clock, no socket and no file: what belongs on disk comes out as [`Translation::files`].
#![forbid(unsafe_code)]

pub mod annotations;
pub mod certificate;
pub mod convert;
pub mod gateway;
pub mod names;
pub mod report;
pub mod run;
pub mod settings;
pub mod snapshot;
pub mod state;
pub mod translate;

pub use report::{Finding, ObjectId, Severity};
pub use settings::Settings;
pub use snapshot::Snapshot;
pub use translate::{Memory, Translation};

/// Translates a snapshot. The same snapshot gives the same text, whatever the order of its objects is.
pub fn translate(snapshot: &Snapshot, settings: &Settings) -> Translation {
    translate_next(&mut Memory::default(), snapshot, settings)
}

/// The same for the next of many snapshots: what makes no difference since the last one is taken from `memory`.
pub fn translate_next(
    memory: &mut Memory,
    snapshot: &Snapshot,
    settings: &Settings,
) -> Translation {
    translate::translate(memory, snapshot, settings, gateway::translate)
}
