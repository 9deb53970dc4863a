//! `aio`: selects the threads that read and write files.

use weir_engine::Touches;
use weir_values::Template;

/// `aio`
#[derive(Debug, Clone, Default)]
pub enum Aio {
    /// Threads of the default pool.
    #[default]
    Default,
    /// The loop itself.
    Off,
    /// Threads of the default pool for operations up to this one, the loop for the others.
    Partly(Touches),
    /// Threads of the pool of this name.
    Threads(Template),
}
