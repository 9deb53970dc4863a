//! Which threads do operations that may wait for the disk.

use super::FilePool;

/// The threads that do an operation on files, and wait where they must.
#[derive(Clone, Debug)]
pub enum Doer {
    /// A thread of this pool, if the kernel cannot answer from memory.
    Pool(FilePool),
    /// A thread of this pool for operations up to this one; the loop for the others, without asking the kernel
    /// first. It is there to be compared with.
    Partly(FilePool, Touches),
    /// The loop itself, without asking the kernel first: as a server does that has no threads for files.
    Loop,
}

/// What an operation touches, from what servers mostly give to threads to what they mostly do not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Touches {
    /// The content of an open file.
    Content,
    /// The way to a file: opening, asking what a name is.
    Name,
    /// Directories, as when files are created, renamed and removed.
    Directory,
}

impl Doer {
    /// The pool with the threads for such an operation; `None`: the loop does it.
    pub fn pool(&self, touches: Touches) -> Option<&FilePool> {
        match self {
            Doer::Pool(pool) => Some(pool),
            Doer::Partly(pool, most) => (touches <= *most).then_some(pool),
            Doer::Loop => None,
        }
    }
}
