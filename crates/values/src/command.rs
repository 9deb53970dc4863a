//! Commands of an operator to the whole server, which come through one of its workers.

use weir_log::Level;

/// Something that all processes do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// Open the log files anew.
    Reopen,
    /// Error logs take messages of this level, or as the configuration says.
    Level(Option<Level>),
    /// Servers behind were changed: requests that wait for one look again.
    Look,
}
