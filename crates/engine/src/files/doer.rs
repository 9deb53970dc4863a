//! Which thread performs file operations that may block.

use super::FilePool;

/// Which thread performs operations on files and blocks where it must.
#[derive(Clone, Debug)]
pub enum Doer {
    /// A thread of this pool, if the kernel cannot answer from memory.
    Pool(FilePool),
    /// For operations up to this kind, a thread of this pool; for others the loop, without trying
    /// memory first. Exists to be compared with the others.
    Partly(FilePool, Touches),
    /// The loop itself, without trying memory first. So does a server without file threads.
    Loop,
}

/// What an operation touches. Ordered from what servers usually leave to threads to what they
/// usually do themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Touches {
    /// The content of an open file.
    Content,
    /// A name: opening a file, stat(2).
    Name,
    /// Directories: creating, renaming and removing files.
    Directory,
}

impl Doer {
    /// The pool whose thread performs such an operation. `None` if the loop does.
    pub fn pool(&self, touches: Touches) -> Option<&FilePool> {
        match self {
            Doer::Pool(pool) => Some(pool),
            Doer::Partly(pool, most) => (touches <= *most).then_some(pool),
            Doer::Loop => None,
        }
    }
}
